"""ONNX in float and int8, one file each for x86 and ARM.

Int8 means unsigned activations and signed 7-bit weights: with 8 bits, AVX2 and SSE saturate and labels change; with 7
the answers are equal on every processor that was tried. Operator set 20 is the last that keeps GroupNorm as
InstanceNormalization, which has a fast kernel.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.calibrate import TensorData, TensorsData, create_calibrator, save_tensors_data
from onnxruntime.quantization.shape_inference import quant_pre_process

from fedloop_core.artifact import TensorSpec
from fedloop_core.encoding import Inputs
from fedloop_core.task.document import ExportTarget
from fedloop_server.export.converter import RANGE_MARGIN, Converted, Converter, RuntimeName
from fedloop_server.export.source import Source

__all__ = ["OnnxFloat", "OnnxInt8"]

_OPERATOR_SET = 20
_OUTPUT = "logits"
_STATIC = ["Conv", "Gemm", "MatMul"]  # norms, pools and preprocessing stay float
_DYNAMIC = ["Gemm", "MatMul", "Gather"]  # never Conv: ConvInteger is slow on x86 and does not load on ARM


class OnnxFloat(Converter):
    """Float32, any number of rows."""

    kind: ClassVar[ExportTarget] = "onnx-fp32"
    runtimes: ClassVar[tuple[RuntimeName, ...]] = ("onnxruntime",)
    golden_tolerance: ClassVar[float] = 0.005
    minimum_agreement: ClassVar[float] = 1.0
    maximum_deviation: ClassVar[float] = 0.001

    def convert(self, source: Source) -> Converted:
        """Exports by torch's own exporter."""
        return _converted(_float_model(source), source, one_row=False)


class OnnxInt8(Converter):
    """Int8: dynamic for networks of fully connected layers, static with ranges from synthetic inputs for convolutions.

    Dynamic quantisation scales by what it sees, so that a row's answer would depend on the rest of its batch: such a
    file runs one row at a time.
    """

    kind: ClassVar[ExportTarget] = "onnx-int8"
    runtimes: ClassVar[tuple[RuntimeName, ...]] = ("onnxruntime",)
    golden_tolerance: ClassVar[float] = 0.005
    minimum_agreement: ClassVar[float] = 0.9
    maximum_deviation: ClassVar[float] = 0.25

    def convert(self, source: Source) -> Converted:
        """Quantises the float export."""
        model = _float_model(source)
        convolutional = any(node.op_type in {"Conv", "ConvTranspose"} for node in model.graph.node)
        with tempfile.TemporaryDirectory(dir=source.folder) as name:
            folder = Path(name)
            prepared, quantised = folder / "prepared.onnx", folder / "quantised.onnx"
            onnx.save(model, folder / "float.onnx")
            quant_pre_process(folder / "float.onnx", prepared, skip_symbolic_shape=True)
            if convolutional:
                ranges = folder / "ranges.json"
                save_tensors_data(_ranges(prepared, source.calibration(), folder), ranges)
                quantize_static(
                    prepared,
                    quantised,
                    calibration_cache_path=ranges,
                    per_channel=True,
                    reduce_range=True,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    op_types_to_quantize=_STATIC,
                    # an int8 head would clip the logits
                    extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
                )
            else:
                quantize_dynamic(
                    prepared,
                    quantised,
                    per_channel=True,
                    reduce_range=True,
                    weight_type=QuantType.QInt8,
                    op_types_to_quantize=_DYNAMIC,
                )
            return _converted(onnx.load(quantised), source, one_row=not convolutional)


class _Rows(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
    """Hands rows to the calibrator, one by one."""

    def __init__(self, rows: list[Inputs]) -> None:
        self._rows = iter(rows)

    def get_next(self) -> Inputs | None:
        """The next row; None after the last."""
        return next(self._rows, None)


def _float_model(source: Source) -> onnx.ModelProto:
    example = source.example(2)  # one row would be taken for a constant
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        source.model,
        example,
        dynamo=True,
        opset_version=_OPERATOR_SET,
        dynamic_shapes=(tuple({0: batch} for _ in example),),
        input_names=[spec.name for spec in source.inputs],
        output_names=[_OUTPUT],
        external_data=False,
        verbose=False,
    )
    if program is None:
        raise TypeError("torch.onnx.export gave no program")
    return program.model_proto


def _ranges(model: Path, rows: list[Inputs], folder: Path) -> TensorsData:
    """Least and largest value of each activation over the rows, widened."""
    calibrator = create_calibrator(model, _STATIC, augmented_model_path=str(folder / "augmented.onnx"))
    calibrator.collect_data(_Rows(rows))
    seen = calibrator.compute_data()
    margin = np.float32(RANGE_MARGIN)
    widened = {
        name: TensorData(lowest=data.lowest * margin, highest=data.highest * margin) for name, data in seen.items()
    }
    return TensorsData(seen.calibration_method, widened)


def _converted(model: onnx.ModelProto, source: Source, *, one_row: bool) -> Converted:
    _strip(model)
    return Converted(
        model=model.SerializeToString(deterministic=True),
        rows="one" if one_row else "batch",
        inputs=tuple(
            TensorSpec(name=spec.name, dtype="int64" if spec.dtype == "int64" else "float32", shape=spec.shape)
            for spec in source.inputs
        ),
        output=TensorSpec(name=_OUTPUT, dtype="float32", shape=(source.schema.outputs,)),
        operators=tuple(sorted({node.op_type for node in model.graph.node})),
    )


def _strip(model: onnx.ModelProto) -> None:
    """Takes off what torch writes beside the graph: stack traces with this machine's paths, more than a small model."""
    graph = model.graph
    for part in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer, graph, model):
        del part.metadata_props[:]
        part.doc_string = ""
