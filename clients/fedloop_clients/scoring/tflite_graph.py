"""Which TFLite graphs keep the rows of a private run apart when each row is answered alone: as for ONNX."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ai_edge_litert import schema_py_generated as schema

from fedloop_clients.scoring.refusing import refused

__all__ = ["TFLITE_OPERATORS", "check_tflite"]

_LISTED = """
ABS ADD ADD_N ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_MATMUL BROADCAST_TO CAST CEIL CONCATENATION CONV_2D CONV_3D COS
CUMSUM DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV ELU EMBEDDING_LOOKUP EQUAL EXP EXPAND_DIMS FILL FLOOR FLOOR_DIV
FLOOR_MOD FULLY_CONNECTED GATHER GATHER_ND GELU GREATER GREATER_EQUAL HARD_SWISH L2_NORMALIZATION L2_POOL_2D LEAKY_RELU
LESS LESS_EQUAL LOCAL_RESPONSE_NORMALIZATION LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC LOG_SOFTMAX MAXIMUM
MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NEG NOT_EQUAL ONE_HOT PACK PAD PADV2 POW PRELU QUANTIZE RANGE RANK REDUCE_ALL
REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR
RESIZE_NEAREST_NEIGHBOR ROUND RSQRT SELECT SELECT_V2 SHAPE SIGN SIN SLICE SOFTMAX SPACE_TO_DEPTH SPLIT SPLIT_V SQRT
SQUARE SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM TANH TILE TOPK_V2 TRANSPOSE TRANSPOSE_CONV UNPACK ZEROS_LIKE
"""
TFLITE_OPERATORS = frozenset(_LISTED.split())
"""Built-in operators that a graph may be made of."""

_SHAPING: dict[str, tuple[int, ...]] = {
    "ARG_MAX": (1,),
    "ARG_MIN": (1,),
    "BROADCAST_TO": (1,),
    "CUMSUM": (1,),
    "EXPAND_DIMS": (1,),
    "FILL": (0,),
    "MEAN": (1,),
    "MIRROR_PAD": (1,),
    "ONE_HOT": (1,),
    "PAD": (1,),
    "PADV2": (1,),
    "RANGE": (0, 1, 2),
    "REDUCE_ALL": (1,),
    "REDUCE_ANY": (1,),
    "REDUCE_MAX": (1,),
    "REDUCE_MIN": (1,),
    "REDUCE_PROD": (1,),
    "RESHAPE": (1,),
    "RESIZE_BILINEAR": (1,),
    "RESIZE_NEAREST_NEIGHBOR": (1,),
    "SLICE": (1, 2),
    "SPLIT": (0,),
    "SPLIT_V": (1, 2),
    "STRIDED_SLICE": (1, 2, 3),
    "SUM": (1,),
    "TILE": (1,),
    "TOPK_V2": (1,),
    "TRANSPOSE": (1,),
    "TRANSPOSE_CONV": (0,),
}  # places of the inputs that decide a shape
_DIVIDES = frozenset({"DIV", "FLOOR_DIV", "FLOOR_MOD"})
_NAMES = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
_ABSENT = -1


def check_tflite(model: bytes) -> None:
    """Refuses what is not one graph of ``TFLITE_OPERATORS`` with shapes that no row decides.

    Raises:
        ArtifactRefused: it is not; says why.
    """
    try:
        _check(schema.Model.GetRootAs(model, 0))
    except (struct.error, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise refused("it is not TFLite") from error


def _check(model: Any) -> None:
    codes = [model.OperatorCodes(at) for at in range(model.OperatorCodesLength())]
    names = [_NAMES.get(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()), "CUSTOM") for code in codes]
    for name in names:
        if name not in TFLITE_OPERATORS:
            raise refused(f"operator {name} is not among those known to keep nothing")
    if model.SubgraphsLength() != 1:
        raise refused(f"it holds {model.SubgraphsLength()} graphs")
    graph = model.Subgraphs(0)
    tensors = [graph.Tensors(at) for at in range(graph.TensorsLength())]
    if any(tensor.IsVariable() for tensor in tensors):
        raise refused("it keeps a variable")
    constant = {at for at, tensor in enumerate(tensors) if _has_data(model.Buffers(tensor.Buffer()))}
    given = {graph.Inputs(at) for at in range(graph.InputsLength())}
    known = {_ABSENT, *constant, *given}
    for operator in (graph.Operators(at) for at in range(graph.OperatorsLength())):
        _check_operator(operator, names[operator.OpcodeIndex()], tensors, constant - given, known)
    signatures = [model.SignatureDefs(at) for at in range(model.SignatureDefsLength())]
    takes = {one.Inputs(at).TensorIndex() for one in signatures for at in range(one.InputsLength())}
    tells = {one.Outputs(at).TensorIndex() for one in signatures for at in range(one.OutputsLength())}
    if any(one.SubgraphIndex() for one in signatures) or not given.issuperset(takes) or not known.issuperset(tells):
        raise refused("its signatures are not those of its graph")


def _check_operator(operator: Any, name: str, tensors: list[Any], constant: set[int], known: set[int]) -> None:
    """Each tensor is written once, before it is read: one that is not would be read as the last row left it."""
    inputs = [operator.Inputs(at) for at in range(operator.InputsLength())]
    outputs = [operator.Outputs(at) for at in range(operator.OutputsLength())]
    if not known.issuperset(inputs) or operator.IntermediatesLength():
        raise refused("its operators are not in order")
    if not known.isdisjoint(outputs):
        raise refused("it writes a tensor twice")
    for place in _SHAPING.get(name, ()):
        if place < len(inputs) and inputs[place] not in {_ABSENT, *constant}:
            raise refused(f"the shape that {name} gives is no constant")
    if name in _DIVIDES and any(kind != schema.TensorType.FLOAT32 for kind in _kinds(tensors, inputs + outputs)):
        raise refused(f"{name} divides whole numbers")
    known.update(outputs)


def _kinds(tensors: list[Any], places: list[int]) -> Iterator[int]:
    return (tensors[at].Type() for at in places)


def _has_data(buffer: Any) -> bool:
    return bool(buffer.DataLength() or (buffer.Offset() > 1 and buffer.Size()))
