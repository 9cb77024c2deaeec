"""Looking at devices in a process of its own: a broken driver can end it, and a look takes memory of each GPU."""

from __future__ import annotations

import subprocess
import sys

from pydantic import ValidationError

from fedloop_clients.training.seen import Devices

__all__ = ["see_devices"]

_SECONDS = 60.0


def see_devices() -> Devices:
    """What torch sees of this machine; ``error`` says why nothing was seen."""
    command = [sys.executable, "-m", "fedloop_clients.training.probe"]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)  # noqa: S603  our own module
        return Devices.model_validate_json(ended.stdout)
    except subprocess.TimeoutExpired:
        return Devices(error=f"no answer within {_SECONDS:.0f} s")
    except (OSError, ValidationError):
        return Devices(error="its process ended")
