"""Names in a release and the assignment document, shared by the coordinator that signs and the device that checks.

A release is a TUF repository (specification 1.0). Its targets have three shapes, told apart by their number of parts:

- ``<task>/<version>/<kind>/<file>``: a file of an artifact, signed by the role ``task-<task>``. Listed is not assigned.
- ``site/<site>/<task>/<version>/<kind>/<file>``: the same for a site's own devices, signed by the site alone in the role
  ``site-<site>``.
- ``assignments/<task>/<group>.json``: which version a group of devices runs, signed by the role ``assignments``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from fedloop_core.errors import AssignmentRefused, UsageError
from fedloop_core.federation.names import SITE_PATTERN
from fedloop_core.strict import Strict
from fedloop_core.task.document import ExportTarget

__all__ = [
    "ASSIGNMENTS_PATTERN",
    "ASSIGNMENTS_ROLE",
    "DESCRIPTION_FILE",
    "GOLDEN_FILE",
    "MAXIMUM_ASSIGNMENT_BYTES",
    "PROFILE_FILE",
    "SIGNED_AT_FIELD",
    "SITE_ROLE_PREFIX",
    "ArtifactFile",
    "Assignment",
    "artifact_path",
    "assignment_path",
    "parse_artifact_path",
    "site_artifact_path",
    "site_pattern",
    "site_role",
    "task_pattern",
    "task_role",
]

ASSIGNMENTS_ROLE = "assignments"
ASSIGNMENTS_PATTERN = "assignments/*/*"
SITE_ROLE_PREFIX = "site-"
DESCRIPTION_FILE = "artifact.json"
GOLDEN_FILE = "golden.safetensors"
PROFILE_FILE = "profile.json"
MAXIMUM_ASSIGNMENT_BYTES = 4096
SIGNED_AT_FIELD = "x-fedloop-signed-unix"
"""Field of the signed timestamp: seconds since 1970 at which it was signed, a floor for a device's clock."""

_TASK = r"^[a-z][a-z0-9\-]{0,62}$"
_GROUP = r"^[A-Za-z0-9][A-Za-z0-9_\-]{0,99}$"
_FILES = frozenset({DESCRIPTION_FILE, "model.onnx", "model.tflite", GOLDEN_FILE, PROFILE_FILE})
_KINDS: tuple[ExportTarget, ...] = get_args(ExportTarget)
_VERSION = Annotated[int, Field(ge=1, le=2**32 - 1)]  # uint32 on the wire


class Assignment(Strict):
    """``assignments/<task>/<group>.json``: the version that a group of devices runs.

    ``counter`` rises with every assignment of the group, also when the version goes back; a device refuses a counter
    below the last that it accepted. ``rollback_of`` names the version that is taken back.
    """

    format: Literal[1]
    task: Annotated[str, Field(pattern=_TASK)]
    group: Annotated[str, Field(pattern=_GROUP)]
    version: _VERSION
    counter: Annotated[int, Field(ge=1, le=2**63 - 1)]
    rollback_of: _VERSION | None = None

    @model_validator(mode="after")
    def _takes_back_another_version(self) -> Self:
        if self.rollback_of == self.version:
            raise ValueError("rollback_of must be another version than the one assigned")
        return self

    @property
    def path(self) -> str:
        """The target that holds this document."""
        return assignment_path(self.task, self.group)

    def to_bytes(self) -> bytes:
        """Canonical JSON bytes."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads what ``to_bytes`` wrote.

        Raises:
            AssignmentRefused: the bytes are too many or not a valid assignment.
        """
        if len(content) > MAXIMUM_ASSIGNMENT_BYTES:
            raise AssignmentRefused(
                f"an assignment has {len(content)} bytes; at most {MAXIMUM_ASSIGNMENT_BYTES} are read.", reason="length"
            )
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the whole"
            raise AssignmentRefused(
                f"an assignment is not valid at {where}: {first['msg']}.", reason="document"
            ) from error


@dataclass(frozen=True)
class ArtifactFile:
    """What the path of an artifact's file says."""

    task: str
    version: int
    kind: ExportTarget
    file: str


def artifact_path(task: str, version: int, kind: ExportTarget, file: str) -> str:
    """The target of one file of an artifact: ``<task>/<version>/<kind>/<file>``.

    Raises:
        UsageError: a part is not a name that a release may hold.
    """
    _check_task(task)
    if version < 1:
        raise UsageError(f"a version is numbered from 1, not {version}.")
    if kind not in _KINDS:
        raise UsageError(f"{kind!r} is not a kind of artifact.", hint=f"Use one of {', '.join(_KINDS)}.")
    if file not in _FILES:
        raise UsageError(f"{file!r} is not a file of an artifact.", hint=f"Use one of {', '.join(sorted(_FILES))}.")
    return f"{task}/{version}/{kind}/{file}"


def parse_artifact_path(path: str) -> ArtifactFile:
    """Takes apart what ``artifact_path`` made.

    Raises:
        UsageError: the path is not that of an artifact's file.
    """
    match path.split("/"):
        case [task, number, kind, file] if re.fullmatch(r"[1-9][0-9]{0,9}", number):
            for known in _KINDS:
                if kind == known and artifact_path(task, int(number), known, file) == path:
                    return ArtifactFile(task, int(number), known, file)
    raise UsageError(f"{path!r} is not the path of an artifact's file.")


def assignment_path(task: str, group: str) -> str:
    """The target of a group's assignment: ``assignments/<task>/<group>.json``.

    Raises:
        UsageError: task or group is not a name that a release may hold.
    """
    _check_task(task)
    if re.fullmatch(_GROUP, group) is None:
        raise UsageError(
            f"{group!r} is not the name of a group.", hint="Use up to 100 letters, digits, '-' and '_', no path."
        )
    return f"assignments/{task}/{group}.json"


def task_role(task: str) -> str:
    """The role that signs a task's artifacts.

    Raises:
        UsageError: the task's name is not one that a release may hold.
    """
    _check_task(task)
    return f"task-{task}"


def task_pattern(task: str) -> str:
    """The target paths that the task's role may list.

    Raises:
        UsageError: the task's name is not one that a release may hold.
    """
    _check_task(task)
    return f"{task}/*/*/*"


def site_artifact_path(site: str, task: str, version: int, kind: ExportTarget, file: str) -> str:
    """The target of one file of a site's own artifact: ``site/<site>/<task>/<version>/<kind>/<file>``.

    Raises:
        UsageError: a part is not a name that a release may hold.
    """
    _check_site(site)
    return f"site/{site}/{artifact_path(task, version, kind, file)}"


def site_role(site: str) -> str:
    """The role that signs a site's own artifacts.

    Raises:
        UsageError: the site's name is not one that a release may hold.
    """
    _check_site(site)
    return f"{SITE_ROLE_PREFIX}{site}"


def site_pattern(site: str) -> str:
    """The target paths that the site's role may list.

    Raises:
        UsageError: the site's name is not one that a release may hold.
    """
    _check_site(site)
    return f"site/{site}/*/*/*/*"


def _check_site(site: str) -> None:
    if re.fullmatch(SITE_PATTERN, site) is None:
        raise UsageError(
            f"{site!r} is not the name of a site.", hint="Use up to 63 lower-case letters, digits and '-', no path."
        )


def _check_task(task: str) -> None:
    if re.fullmatch(_TASK, task) is None:
        raise UsageError(
            f"{task!r} is not the name of a task.", hint="Use up to 63 lower-case letters, digits and '-', no path."
        )
