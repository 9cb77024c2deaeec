"""How new the authorities are that this site trusts: a notice that was made before them is refused, however valid it still is.

Who can speak at the hub but has not the envelope key, as after a theft of its certificate's key, could otherwise bring an
authority back that was rolled away.
"""

from __future__ import annotations

from pathlib import Path

from fedloop_clients.state_file import StateFile
from fedloop_core.errors import EnvelopeRefused
from fedloop_core.strict import Strict

__all__ = ["FILE_NAME", "TrustedFile"]

FILE_NAME = "trusted.json"


class _Trusted(Strict):
    expires_unix: int = 0  # of the newest notice, and each is valid as long as any other: it rises with their time


class TrustedFile:
    """``trusted.json`` in a site's home; ``None`` keeps it in memory."""

    def __init__(self, path: Path | None) -> None:
        self._file = StateFile(path, _Trusted())

    def forget(self) -> None:
        """The site has joined anew, and what it was told then holds.

        Raises:
            StorageError: the file cannot be read or written.
        """
        self._file.change(lambda _: _Trusted())

    def accept(self, expires_unix: int) -> None:
        """Notes a notice that expires then; the same one may come again.

        Raises:
            EnvelopeRefused: it is older than one that was accepted; reason ``replayed``.
            StorageError: the file cannot be read or written.
        """

        def newer(known: _Trusted) -> _Trusted:
            if expires_unix < known.expires_unix:
                raise EnvelopeRefused(
                    "a notice of authorities is older than the one that holds.",
                    hint="If the coordinator's clock was set back, join again with a new token.",
                    reason="replayed",
                )
            return _Trusted(expires_unix=expires_unix)

        self._file.change(newer)
