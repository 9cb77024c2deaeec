"""Settings files and folders of a coordinator or a site."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError, Field

__all__ = ["AlreadySetUp", "NotSetUp", "SettingsError", "SettingsInvalid"]


class SettingsError(FedloopError):
    """server.toml or site.toml."""

    code = "FL-SET-000"
    exit_status = 3


class SettingsInvalid(SettingsError):
    """A settings file that cannot be read or holds something else than it should; names file, line and key.

    ``problems`` lists each mistake with its line.
    """

    code = "FL-SET-001"

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), hint: str = "", **fields: Field) -> None:
        super().__init__(message, hint=hint, **fields)
        self.problems = problems


class AlreadySetUp(SettingsError):
    """A folder that holds a coordinator or a site already; nothing was changed."""

    code = "FL-SET-002"


class NotSetUp(SettingsError):
    """A folder that holds no coordinator or site yet."""

    code = "FL-SET-003"
