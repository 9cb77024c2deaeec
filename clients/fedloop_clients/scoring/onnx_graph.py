"""Which ONNX graphs keep the rows of a private run apart when each row is answered alone.

Nothing may be kept from one answer to the next, and no value of a row may decide what a later row meets: how much memory is
taken, or whether the process lives on. So operators are those of a list: without state, random numbers, branches and loops,
with shapes that follow from the artifact alone, and without the division of whole numbers, which ends a process.
"""

from __future__ import annotations

import onnx
from google.protobuf.message import DecodeError

from fedloop_clients.scoring.refusing import refused

__all__ = ["ONNX_OPERATORS", "check_onnx"]

_LISTED = """
Abs Acos Add And ArgMax ArgMin Asin Atan AveragePool BatchNormalization Cast CastLike Ceil Celu Clip Concat Constant
ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div DynamicQuantizeLinear
Einsum Elu Equal Erf Exp Expand Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool
GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization
IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul
MatMulInteger Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg Not OneHot Or PRelu Pad Pow QLinearConv
QLinearMatMul QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round ScatterElements ScatterND
Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan
Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
ONNX_OPERATORS = frozenset(_LISTED.split())
"""Operators of ONNX's own domain that a graph may be made of."""

_REDUCTIONS = {name: (1,) for name in ONNX_OPERATORS if name.startswith("Reduce")}
_SHAPING: dict[str, tuple[int, ...]] = _REDUCTIONS | {
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Expand": (1,),
    "GRU": (4,),
    "LSTM": (4,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "RNN": (4,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
}  # places of the inputs that decide a shape, or how often something is done
_OF_SHAPES = frozenset({"Shape", "Size"})  # read no value
_DIVIDES = frozenset({"Div", "Mod"})
_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
)
_ORT_FORMAT = b"ORTM"  # onnxruntime's own format, which its loader tells by these bytes


def check_onnx(model: bytes) -> None:
    """Refuses what is not a graph of ``ONNX_OPERATORS`` with shapes that no row decides.

    Raises:
        ArtifactRefused: it is not; says why.
    """
    if model[4:8] == _ORT_FORMAT:
        raise refused("it is not ONNX")
    try:
        parsed = onnx.ModelProto.FromString(model)
    except DecodeError as error:
        raise refused("it is not ONNX") from error
    if parsed.functions:
        raise refused("it brings functions of its own")
    graph = parsed.graph
    if any(_is_outside(tensor) for tensor in graph.initializer):
        raise refused("it reads files")
    known = {"", *(tensor.name for tensor in graph.initializer)}
    known.update(tensor.values.name for tensor in graph.sparse_initializer)
    from_rows = {tensor.name for tensor in graph.input} - known
    known |= from_rows
    floats: frozenset[str] | None = None
    for node in graph.node:
        _check_node(node, known)
        moved = [place for place, name in enumerate(node.input) if name in from_rows]
        if any(place in _SHAPING.get(node.op_type, ()) for place in moved):
            raise refused(f"values of a row decide the shape that {node.op_type} gives")
        if moved and node.op_type in _DIVIDES:
            floats = _float_tensors(parsed) if floats is None else floats
            if not floats.issuperset(node.output):
                raise refused(f"{node.op_type} divides whole numbers by values of a row, or is not known not to")
        known.update(node.output)
        if moved and node.op_type not in _OF_SHAPES:
            from_rows.update(node.output)


def _check_node(node: onnx.NodeProto, known: set[str]) -> None:
    if node.domain not in {"", "ai.onnx"} or node.op_type not in ONNX_OPERATORS:
        raise refused(f"operator {node.op_type[:80]} is not among those known to keep nothing")
    if not known.issuperset(node.input):
        raise refused("its nodes are not in order")
    for attribute in node.attribute:
        if attribute.HasField("g") or attribute.graphs or attribute.ref_attr_name:
            raise refused(f"operator {node.op_type} holds a graph")
        if _is_outside(attribute.t) or any(_is_outside(tensor) for tensor in attribute.tensors):
            raise refused("it reads files")


def _is_outside(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data)


def _float_tensors(model: onnx.ModelProto) -> frozenset[str]:
    """Names of tensors that are found to hold floats, whatever the model says of them."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    del bare.graph.output[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(bare)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise refused("its types cannot be worked out") from error
    return frozenset(value.name for value in inferred.graph.value_info if value.type.tensor_type.elem_type in _FLOATS)
