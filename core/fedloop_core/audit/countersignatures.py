"""What sites have signed of the coordinator's log: a log that is cut back or written anew no longer holds it.

The coordinator names its newest entry in each instruction, the site repeats it in its signed answer, and the coordinator
keeps the newest such answer of each site in a folder beside the log. Whoever writes the log anew would also have to delete
what is kept, which the sites' own copies of their answers tell.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from fedloop_core.audit.chain import AuditHead
from fedloop_core.audit.entries import AuditEntry
from fedloop_core.durable import write_bytes
from fedloop_core.errors import AnswerRefused, AuditBroken, StorageError
from fedloop_core.federation.answers import open_answer
from fedloop_core.federation.names import SiteName, is_site_name
from fedloop_core.keys import VerifyingKey
from fedloop_core.strict import Strict

__all__ = [
    "Countersignature",
    "Countersignatures",
    "Countersigned",
    "KeyFrom",
    "check_countersignatures",
    "countersigned",
]

_MAXIMUM = 1024 * 1024  # bytes of a signed answer; arrays travel beside it
_HINT = "Compare the log with a backup and with the site's own audit log, and ask who could write to it."


class Countersignature(Strict):
    """A site's newest signed answer, the entry of the coordinator's log that it names, and the key that checked it.

    ``signing_key`` is 32 raw bytes in hex; empty where it was kept before keys were.
    """

    site: SiteName
    sequence: Annotated[int, Field(ge=1)]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    signed_answer: Annotated[str, Field(max_length=_MAXIMUM * 4 // 3 + 4)]
    signing_key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""


class KeyFrom(StrEnum):
    """Who said which key checks a countersignature."""

    SITE = "given"
    COORDINATOR = "kept"
    NOBODY = "none"


@dataclass(frozen=True)
class Countersigned:
    """A countersigned entry that is in the log; ``key`` is whose word the key is that its signature was checked with."""

    site: str
    sequence: int
    key: KeyFrom

    @property
    def verified(self) -> bool:
        """Whether the signature was checked."""
        return self.key is not KeyFrom.NOBODY


class Countersignatures:
    """The folder beside the log at ``path``: one file a site. Without ``durable`` nothing waits for the disk."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.folder = path.with_suffix(".countersigned")
        self._durable = durable

    def keep(self, site: str, signed_answer: bytes, head: AuditHead, key: VerifyingKey | None = None) -> None:
        """Keeps a site's answer when it names a newer entry than the one that is kept.

        Args:
            site: its name.
            signed_answer: a serialised ``SignedAnswer``, checked by the caller with the site's registered key.
            head: what the answer names.
            key: the site's registered key.

        Raises:
            StorageError: it cannot be written, or no answer is that long.
            ValueError: no site has such a name.
        """
        if not is_site_name(site):
            raise ValueError(f"{site!r} is no name of a site")
        if len(signed_answer) > _MAXIMUM:
            raise StorageError(f"the signed answer of site {site} has {len(signed_answer)} bytes: too many to keep.")
        kept = self.of(site)
        if head.sequence == 0 or (kept is not None and kept.sequence >= head.sequence):
            return
        content = Countersignature(
            site=site,
            sequence=head.sequence,
            digest=head.digest.hex(),
            signed_answer=base64.b64encode(signed_answer).decode(),
            signing_key="" if key is None else key.raw.hex(),
        )
        path, text = self.folder / f"{site}.json", content.model_dump_json().encode()
        if self._durable:
            write_bytes(path, text)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)

    def of(self, site: str) -> Countersignature | None:
        """What is kept of a site.

        Raises:
            AuditBroken: the file is not what ``keep`` writes.
            StorageError: it cannot be read.
        """
        path = self.folder / f"{site}.json"
        try:
            found = Countersignature.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}.", hint="Correct rights.") from error
        except ValidationError as error:
            raise AuditBroken(f"{path} is not a countersignature.", hint=_HINT, site=site) from error
        if found.site != site:
            raise AuditBroken(f"{path} holds a countersignature of site {found.site}.", hint=_HINT, site=site)
        return found

    def all(self) -> tuple[Countersignature, ...]:
        """What is kept, by name of the site.

        Raises:
            AuditBroken: a file is not what ``keep`` writes.
        """
        names = sorted(path.stem for path in self.folder.glob("*.json")) if self.folder.is_dir() else []
        return tuple(found for name in names if (found := self.of(name)) is not None)


def countersigned(path: Path) -> Countersignatures:
    """The countersignatures beside the log at ``path``."""
    return Countersignatures(path)


def check_countersignatures(
    entries: Iterable[AuditEntry], kept: Iterable[Countersignature], keys: Mapping[str, VerifyingKey]
) -> tuple[Countersigned, ...]:
    """Checks that the log still holds every entry that a site has countersigned.

    Args:
        entries: the whole log, in order, each following from the one before it.
        kept: what the coordinator keeps of the sites' answers.
        keys: from the sites themselves; for the others, the key counts that the coordinator kept with the signature.

    Raises:
        AuditBroken: names the site and the entry: the log was cut back or written anew, or the signature is not the site's.
    """
    kept, checked = tuple(kept), []
    wanted = {one.sequence for one in kept}
    digests, last = {}, 0
    for entry in entries:
        last = entry.sequence
        if last in wanted:
            digests[last] = entry.digest
    for one in kept:
        key, source = _key(one, keys)
        _check_signature(one, key)
        checked.append(Countersigned(one.site, one.sequence, source))
        if one.sequence > last:
            raise AuditBroken(
                f"the audit log was cut back: site {one.site} countersigned entry {one.sequence}, and the log ends at "
                f"entry {last}.",
                hint=_HINT,
                site=one.site,
                sequence=one.sequence,
            )
        if digests[one.sequence] != one.digest:
            raise AuditBroken(
                f"the audit log was written anew: entry {one.sequence} is not the one that site {one.site} countersigned.",
                hint=_HINT,
                site=one.site,
                sequence=one.sequence,
            )
    return tuple(checked)


def _key(one: Countersignature, keys: Mapping[str, VerifyingKey]) -> tuple[VerifyingKey | None, KeyFrom]:
    if one.site in keys:
        return keys[one.site], KeyFrom.SITE
    if one.signing_key:
        return VerifyingKey(bytes.fromhex(one.signing_key)), KeyFrom.COORDINATOR
    return None, KeyFrom.NOBODY


def _check_signature(one: Countersignature, key: VerifyingKey | None) -> None:
    if key is None:
        return
    try:
        answer = open_answer(base64.b64decode(one.signed_answer, validate=True), key, site=one.site)
    except (AnswerRefused, ValueError) as error:
        raise AuditBroken(
            f"the countersignature of site {one.site} on entry {one.sequence} is not the site's.",
            hint=_HINT,
            site=one.site,
        ) from error
    if (answer.audit.sequence, answer.audit.digest.hex()) != (one.sequence, one.digest):
        raise AuditBroken(
            f"the answer that site {one.site} signed names entry {answer.audit.sequence} of the audit log, and is kept for "
            f"entry {one.sequence}.",
            hint=_HINT,
            site=one.site,
        )
