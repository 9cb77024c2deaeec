"""TFLite in int8, for one row at a time: the converter does not take a free number of rows.

Only convolutions and fully connected layers are quantised: int8 norms lose accuracy and are slow. Fully connected
layers of dynamic files have one scale for a tensor, because older runtimes compute per-channel ones wrongly, without an
error. Convolutions are never dynamic: a depthwise one, which a convolution over one channel becomes, is wrong everywhere.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import litert_torch
import numpy as np
from ai_edge_litert import schema_py_generated as tflite_schema
from ai_edge_quantizer import algorithm_manager, calibrator, qtyping, quantizer, recipe_manager
from ai_edge_quantizer.utils import tfl_flatbuffer_utils

from fedloop_core.artifact import TensorSpec
from fedloop_core.encoding import Inputs
from fedloop_core.task.document import ExportTarget
from fedloop_server.export.converter import RANGE_MARGIN, Converted, Converter, RuntimeName
from fedloop_server.export.source import Source

__all__ = ["TfliteInt8"]

_SIGNATURE = "serving_default"
_BITS = 8
_OP = qtyping.TFLOperationName
_CONVOLUTIONS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "CONV_3D"})
_OPERATOR_NAMES = {code: name for name, code in vars(tflite_schema.BuiltinOperator).items() if isinstance(code, int)}


class TfliteInt8(Converter):
    """Int8 inside, float inputs and outputs; dynamic without convolutions, static with them."""

    kind: ClassVar[ExportTarget] = "tflite-int8"
    runtimes: ClassVar[tuple[RuntimeName, ...]] = ("litert", "tflite-runtime")
    golden_tolerance: ClassVar[float] = 0.01
    minimum_agreement: ClassVar[float] = 0.9
    maximum_deviation: ClassVar[float] = 0.25

    def convert(self, source: Source) -> Converted:
        """Converts by LiteRT's converter, then quantises."""
        with tempfile.TemporaryDirectory(dir=source.folder) as name:
            path = Path(name) / "float.tflite"
            litert_torch.convert(source.model, source.example(1)).export(str(path))
            content = path.read_bytes()
            if _CONVOLUTIONS.isdisjoint(_operators(content)):
                quantised = _quantised(path, _dynamic_recipe(), None)
            else:
                recipe = _static_recipe(_head(content))
                quantised = _quantised(path, recipe, _ranges(path, recipe, source))
        return Converted(
            model=quantised,
            rows="one",
            inputs=tuple(
                TensorSpec(name=f"args_{at}", dtype="int32" if spec.dtype == "int64" else "float32", shape=spec.shape)
                for at, spec in enumerate(source.inputs)
            ),
            output=TensorSpec(name="output_0", dtype="float32", shape=(source.schema.outputs,)),
            operators=tuple(sorted(_operators(quantised))),
        )


def _dynamic_recipe() -> recipe_manager.RecipeManager:
    recipe = recipe_manager.RecipeManager()
    recipe.add_dynamic_config(".*", _OP.FULLY_CONNECTED, _BITS, granularity=qtyping.QuantGranularity.TENSORWISE)
    return recipe


def _static_recipe(head: str | None) -> recipe_manager.RecipeManager:
    recipe = recipe_manager.RecipeManager()
    for operator in (_OP.CONV_2D, _OP.DEPTHWISE_CONV_2D, _OP.FULLY_CONNECTED):
        recipe.add_static_config(".*", operator, _BITS, _BITS)
    if head is not None:  # an int8 head would clip the logits
        recipe.add_weight_only_config(re.escape(head), _OP.FULLY_CONNECTED, _BITS)
    for operator in (_OP.INPUT, _OP.OUTPUT):
        recipe.add_quantization_config(".*", operator, algorithm_key=algorithm_manager.AlgorithmName.NO_QUANTIZE)
    return recipe


def _ranges(path: Path, recipe: recipe_manager.RecipeManager, source: Source) -> dict[str, Any]:
    """Least and largest value of each tensor over synthetic inputs, widened."""
    samples = [_sample(source, row) for row in source.calibration()]
    calibration = calibrator.Calibrator(str(path), num_threads=1, qsv_update_func=_extremes)
    calibration.calibrate({_SIGNATURE: samples}, recipe)
    return {
        name: {key: value * RANGE_MARGIN if key in {"min", "max"} else value for key, value in ranges.items()}
        for name, ranges in calibration.get_model_qsvs().items()
    }


def _sample(source: Source, row: Inputs) -> Inputs:
    arrays = [row[spec.name] for spec in source.inputs]
    return {
        f"args_{at}": array.astype(np.int32) if array.dtype == np.int64 else array for at, array in enumerate(arrays)
    }


def _extremes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The quantiser's own default is a moving average, which clips hard."""
    return now | {"min": np.minimum(before["min"], now["min"]), "max": np.maximum(before["max"], now["max"])}


def _quantised(path: Path, recipe: recipe_manager.RecipeManager, ranges: dict[str, Any] | None) -> bytes:
    tool = quantizer.Quantizer(str(path), recipe.get_quantization_recipe())
    return bytes(tool.quantize(ranges, enable_progress_report=False).quantized_model)


def _operators(content: bytes) -> set[str]:
    model = tfl_flatbuffer_utils.read_model(content)
    codes = (max(code.builtinCode, code.deprecatedBuiltinCode) for code in model.operatorCodes)
    return {_OPERATOR_NAMES[code] for code in codes}


def _head(content: bytes) -> str | None:
    """Name of what the last fully connected layer puts out."""
    model = tfl_flatbuffer_utils.read_model(content)
    graph = model.subgraphs[0]
    fully_connected = tflite_schema.BuiltinOperator.FULLY_CONNECTED
    layers = [op for op in graph.operators if model.operatorCodes[op.opcodeIndex].builtinCode == fully_connected]
    return graph.tensors[layers[-1].outputs[0]].name.decode() if layers else None
