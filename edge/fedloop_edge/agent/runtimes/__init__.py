"""Runtimes that answer with an artifact: onnxruntime, LiteRT, tflite-runtime, behind one interface."""

from fedloop_edge.agent.runtimes.golden import check_golden
from fedloop_edge.agent.runtimes.runtime import Runtime
from fedloop_edge.agent.runtimes.selection import available_runtimes, load_runtime, runtime_version

__all__ = ["Runtime", "available_runtimes", "check_golden", "load_runtime", "runtime_version"]
