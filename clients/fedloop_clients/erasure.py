"""Whose rows a site leaves out of every run from now on: people who have objected, or whose consent was withdrawn.

``erased.json`` in the site's home holds no name: of each person a digest under the site's own secret. It is written by ``fedloop site
erase`` and ``fedloop site readmit``, and read whenever rows are.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedloop_clients.people import person_name
from fedloop_clients.state_file import StateFile
from fedloop_core.strict import Strict

__all__ = ["FILE_NAME", "ErasedPeople", "ErasedPerson", "ErasedState"]

FILE_NAME = "erased.json"


class ErasedPerson(Strict):
    """A person: hex HMAC-SHA256 of what names them in the site's file, and when they were erased."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    unix: int


class ErasedState(Strict):
    """The file, oldest first."""

    format: Literal[1] = 1
    people: tuple[ErasedPerson, ...] = ()


class ErasedPeople:
    """The list of one site.

    Args:
        path: the file.
        secret: the site's own; without it digests cannot be compared with names that somebody guesses.
    """

    def __init__(self, path: Path, secret: bytes) -> None:
        self._file = StateFile(path, ErasedState())
        self._secret = secret

    def __len__(self) -> int:
        """How many people are on it.

        Raises:
            StorageError: the list cannot be read.
        """
        return len(self._file.read().people)

    def digest(self, person: str) -> str:
        """Of a person as the file names them, in composed characters (NFC) and without blanks around it."""
        named = b"fedloop erased person\0" + person_name(person).encode()
        return hmac.digest(self._secret, named, hashlib.sha256).hex()

    def state(self) -> ErasedState:
        """The list.

        Raises:
            StorageError: it cannot be read.
        """
        return self._file.read()

    def holds(self) -> Callable[[str], bool]:
        """Whether a person is on the list as it is now; the same person is looked up once.

        Raises:
            StorageError: the list cannot be read.
        """
        known = {person.digest for person in self._file.read().people}
        found: dict[str, bool] = {}

        def is_erased(person: str) -> bool:
            if person not in found:
                found[person] = bool(known) and self.digest(person) in known
            return found[person]

        return is_erased

    def erase(self, people: Iterable[str], now_unix: int) -> tuple[str, ...]:
        """Adds people; returns the digests of those who were not on it.

        Raises:
            StorageError: the list cannot be written.
        """
        named = dict.fromkeys(self.digest(person) for person in people)
        known = {person.digest for person in self._file.read().people}
        new = tuple(digest for digest in named if digest not in known)
        added = tuple(ErasedPerson(digest=digest, unix=now_unix) for digest in new)
        self._file.change(lambda state: state.model_copy(update={"people": (*state.people, *added)}))
        return new

    def readmit(self, people: Iterable[str]) -> tuple[str, ...]:
        """Takes people off it, who want to take part again; returns the digests of those who were on it.

        Raises:
            StorageError: the list cannot be written.
        """
        named = {self.digest(person) for person in people}
        found = tuple(person.digest for person in self._file.read().people if person.digest in named)
        self._file.change(
            lambda state: state.model_copy(
                update={"people": tuple(person for person in state.people if person.digest not in named)}
            )
        )
        return found
