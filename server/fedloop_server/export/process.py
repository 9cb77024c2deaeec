"""The parent's side: one child process for each export.

Converters hold hundreds of megabytes, print much, start threads and can crash or hang; none of that happens inside the
coordinator. The child gets a folder of its own, an environment without the coordinator's secrets, and a deadline.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from fedloop_core.errors import ConversionFailed
from fedloop_server.export.failure import Failure
from fedloop_server.export.request import Artifact, ExportRequest

__all__ = ["export_artifacts"]

_WORKER = "fedloop_server.export.worker"
_LOG_FILE = "converters.log"
_LAST_LINES = 5
_LAST_CHARACTERS = 2000
_THREADS = "2"
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")


def export_artifacts(request: ExportRequest, *, timeout_seconds: float = 300) -> tuple[Artifact, ...]:
    """Converts a model version to every target of its task, in the task's order.

    Each artifact was run on this machine: its answers agree with torch's, and its golden file holds them.

    Args:
        request: the version; the same request gives the same bytes.
        timeout_seconds: after which the child process is ended.

    Raises:
        ConversionFailed: a converter fails, an artifact is too large or does not agree with the model, the child dies
            or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="fedloop-export-") as name:
        folder = Path(name)
        request.write(folder)
        _run_child(folder, f"export of task {request.task.name!r} version {request.version}", timeout_seconds)
        return tuple(Artifact.read(folder / kind, request, kind) for kind in request.task.export.targets)


def _run_child(folder: Path, what: str, timeout_seconds: float) -> None:
    command = [sys.executable, "-P", "-W", "ignore", "-m", _WORKER, str(folder)]
    with (folder / _LOG_FILE).open("wb") as log:
        child = subprocess.Popen(  # noqa: S603 - our own module, by our own interpreter
            command,
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise ConversionFailed(
                f"{what} took longer than {timeout_seconds:g} seconds and was ended.",
                hint="Allow more time or export a smaller model.",
            ) from error
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if status == 0:
        return
    failure = Failure.read(folder)
    if failure is not None:
        raise ConversionFailed(f"{what} failed: {failure.message}", hint=failure.hint)
    raise ConversionFailed(
        f"{what} failed: the conversion process ended with status {status}.",
        hint=f"Its last words: {_last_lines(folder / _LOG_FILE)}",
    )


def _environment(folder: Path) -> dict[str, str]:
    """What the converters need: the same modules, few threads, no network, the same order of hashes every time."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    modules = [str(Path(entry).resolve()) for entry in sys.path]
    return kept | {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(modules),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": _THREADS,
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def _last_lines(log: Path) -> str:
    text = log.read_bytes()[-_LAST_CHARACTERS:].decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-_LAST_LINES:]) or "none."
