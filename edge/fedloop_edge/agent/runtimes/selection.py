"""Which runtimes are installed, and which of them loads an artifact."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from fedloop_core.artifact import ArtifactDescription
from fedloop_core.errors import RuntimeUnavailable
from fedloop_core.task.document import ExportTarget
from fedloop_edge.agent.runtimes.onnx import OnnxRuntime
from fedloop_edge.agent.runtimes.runtime import Runtime
from fedloop_edge.agent.runtimes.tflite import LiteRt, TfliteRuntime

__all__ = ["available_runtimes", "load_runtime", "preferred_kinds", "runtime_version"]


@dataclass(frozen=True)
class _Entry:
    """A runtime, the module and distribution that it comes in, and the kinds that it loads, best first."""

    runtime: type[Runtime]
    module: str
    distribution: str
    kinds: tuple[ExportTarget, ...]


_ENTRIES = (
    _Entry(OnnxRuntime, "onnxruntime", "onnxruntime", ("onnx-int8", "onnx-fp32")),
    _Entry(LiteRt, "ai_edge_litert", "ai-edge-litert", ("tflite-int8",)),
    _Entry(TfliteRuntime, "tflite_runtime", "tflite-runtime", ("tflite-int8",)),
)


def available_runtimes() -> tuple[str, ...]:
    """Names of the installed runtimes, in order of preference."""
    return tuple(entry.runtime.name for entry in _ENTRIES if importlib.util.find_spec(entry.module) is not None)


def preferred_kinds(runtime: str) -> tuple[ExportTarget, ...]:
    """Kinds of artifact that a runtime loads, best first.

    Raises:
        RuntimeUnavailable: there is no runtime of this name.
    """
    return _entry(runtime).kinds


def runtime_version(runtime: str) -> str:
    """Version of an installed runtime; ``absent`` when it is not installed.

    Raises:
        RuntimeUnavailable: there is no runtime of this name.
    """
    try:
        return version(_entry(runtime).distribution)
    except PackageNotFoundError:
        return "absent"


def load_runtime(description: ArtifactDescription, model: bytes, preferred: str | None = None) -> Runtime:
    """Loads a model in ``preferred``, or else in the first installed runtime that takes this kind of artifact.

    Args:
        description: the artifact's ``artifact.json``.
        model: the model file's bytes, already checked against the description.
        preferred: name of a runtime; no other is tried then.

    Raises:
        RuntimeUnavailable: no fitting runtime is installed, or it cannot load the model.
        ArtifactRefused: the model is not the one that is described.
    """
    installed = available_runtimes()
    for entry in _ENTRIES if preferred is None else (_entry(preferred),):
        name = entry.runtime.name
        if name in installed and name in description.runtimes and description.kind in entry.kinds:
            return entry.runtime(description, model)
    raise RuntimeUnavailable(
        f"no runtime here loads {description.kind} (asked for: {preferred or 'any'}; "
        f"installed: {', '.join(installed) or 'none'}; named by the artifact: {', '.join(description.runtimes)}).",
        hint="Install fedloop[edge] for ONNX or fedloop[edge-litert] for TFLite.",
        runtime=preferred or "any",
    )


def _entry(name: str) -> _Entry:
    for entry in _ENTRIES:
        if entry.runtime.name == name:
            return entry
    known = ", ".join(entry.runtime.name for entry in _ENTRIES)
    raise RuntimeUnavailable(f"there is no runtime {name!r}; known are {known}.", runtime=name)
