"""``status.json`` in a site's home: what its daemon does and how it stands with the coordinator, for people and commands."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fedloop_core.durable import write_bytes
from fedloop_core.errors import NotSetUp, StorageError
from fedloop_core.strict import Strict

__all__ = ["FILE_NAME", "SiteStatus", "read_status", "write_status"]

FILE_NAME = "status.json"


class SiteStatus(Strict):
    """Written at each report, so that an ``unix`` of more than half a minute ago says that no daemon runs.

    ``hub`` is a sentence on why the hub is not reached, empty while it is; ``skew_seconds`` is positive when this clock is
    ahead of the coordinator's.
    """

    format: Literal[1] = 1
    unix: int
    activity: str
    run_id: str = ""
    round: int = 0
    step: int = 0
    steps: int = 0
    code: str = ""
    hub: str = ""
    skew_seconds: float = 0.0
    certificate_expires_unix: int = 0


def write_status(folder: Path, status: SiteStatus) -> None:
    """Replaces the file.

    Raises:
        StorageError: it cannot be written.
    """
    write_bytes(folder / FILE_NAME, status.model_dump_json(indent=1).encode())


def read_status(folder: Path) -> SiteStatus:
    """What the daemon wrote last.

    Raises:
        NotSetUp: it has written nothing yet.
        StorageError: the file cannot be read.
    """
    path = folder / FILE_NAME
    try:
        return SiteStatus.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise NotSetUp(f"{folder}: the site's daemon has not run yet.", hint="Run: fedloop site up") from error
    except (OSError, ValidationError) as error:
        raise StorageError(f"cannot read {path}.", hint="The daemon writes it anew within seconds.") from error
