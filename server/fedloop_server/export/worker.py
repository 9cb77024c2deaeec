"""The child process: ``python -m fedloop_server.export.worker FOLDER``.

Reads the request in the folder and leaves one folder for each artifact, or a failure in a sentence. It is imported by
nothing: torch, jax and the converters load here.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

from fedloop_core.artifact import ArtifactDescription, FileReference
from fedloop_core.encoding import Inputs
from fedloop_core.errors import ConversionFailed, FedloopError
from fedloop_core.sketch import Profile
from fedloop_core.task.document import ExportTarget
from fedloop_edge.agent.runtimes import check_golden, load_runtime
from fedloop_server.export.converter import Converted, Converter
from fedloop_server.export.failure import Failure, first_reason
from fedloop_server.export.golden import answers, check_agreement, golden_file, golden_inputs
from fedloop_server.export.request import Artifact, ExportRequest
from fedloop_server.export.source import Source

__all__ = ["main"]

_THREADS = 2
_MEMORY_BYTES = 6 << 30
"""Bound on private memory (RLIMIT_DATA). Not RLIMIT_AS: jax reserves far more address space than it uses."""


def main(folder: Path) -> int:
    """Exports; the exit status says whether the artifacts are there."""
    _limit_memory()
    torch.set_num_threads(_THREADS)
    try:
        _export(ExportRequest.read(folder), folder)
    except FedloopError as error:
        Failure(message=error.message, hint=error.hint).write(folder)
        return error.exit_status
    return 0


def _export(request: ExportRequest, folder: Path) -> None:
    source = Source.of(request, folder)
    inputs = golden_inputs(source)
    for kind in request.task.export.targets:
        converter = _converter(kind)
        _artifact(request, source, converter, inputs).write(folder / kind)


def _converter(kind: ExportTarget) -> Converter:
    """Imports only the converters that a task asks for: each brings a framework."""
    match kind:
        case "onnx-fp32":
            from fedloop_server.export.onnx_targets import OnnxFloat

            return OnnxFloat()
        case "onnx-int8":
            from fedloop_server.export.onnx_targets import OnnxInt8

            return OnnxInt8()
        case "tflite-int8":
            from fedloop_server.export.tflite_targets import TfliteInt8

            return TfliteInt8()


def _artifact(request: ExportRequest, source: Source, converter: Converter, inputs: Inputs) -> Artifact:
    converted = _convert(converter, source)
    allowed = request.task.export.maximum_bytes
    if len(converted.model) > allowed:
        raise ConversionFailed(
            f"{converter.kind} has {len(converted.model)} bytes; export.maximum_bytes allows {allowed}.",
            hint="Raise the bound or make the model smaller.",
        )
    profile = Profile.for_schema(source.schema, source.scaler).to_bytes()
    # The golden file holds the artifact's own answers, and a runtime needs a description to give them.
    unproved = _description(request, converter, converted, golden=b"none yet", profile=profile)
    outputs = answers(load_runtime(unproved, converted.model), inputs)
    check_agreement(converter, source.schema, source.torch_outputs(inputs), outputs)
    golden = golden_file(inputs, outputs)
    description = _description(request, converter, converted, golden=golden, profile=profile)
    check_golden(load_runtime(description, converted.model), description, golden)
    return Artifact(description, converted.model, golden, profile)


def _convert(converter: Converter, source: Source) -> Converted:
    try:
        return converter.convert(source)
    except Exception as error:  # converters are other people's compilers: whatever they raise is a failed conversion
        raise ConversionFailed(
            f"the model cannot be converted to {converter.kind}: {first_reason(error)}",
            hint="Leave this target out, or replace the operator that it names.",
        ) from error


def _description(
    request: ExportRequest, converter: Converter, converted: Converted, *, golden: bytes, profile: bytes
) -> ArtifactDescription:
    return ArtifactDescription(
        format=1,
        task=request.task.name,
        version=request.version,
        kind=converter.kind,
        runtimes=converter.runtimes,
        cpu_class="any",
        rows=converted.rows,
        model=FileReference.of(converted.model),
        golden=FileReference.of(golden),
        profile=FileReference.of(profile),
        inputs=converted.inputs,
        output=converted.output,
        features=request.task.feature_schema,
        operators=converted.operators,
        golden_tolerance=converter.golden_tolerance,
        privacy=request.privacy,
        lineage=request.lineage,
    )


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
