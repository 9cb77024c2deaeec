"""With whom a site sums updates securely: names and identity keys that its people have compared and accepted.

``consortium.json`` in the site's home is written by ``fedloop site consortium accept`` and ``remove`` alone, and the daemon reads it before each
question that it is about. No message changes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from fedloop_clients.state_file import StateFile
from fedloop_core.errors import ConsortiumRefused
from fedloop_core.federation.names import SiteName
from fedloop_core.secure_aggregation.consortium import ConsortiumDocument, IdentityKey, consortium_of
from fedloop_core.secure_aggregation.identity import Consortium
from fedloop_core.strict import Strict

__all__ = [
    "FILE_NAME",
    "AcceptedConsortium",
    "ConsortiumState",
    "Difference",
    "Owner",
    "check_acceptable",
    "check_own_key",
    "difference",
]

FILE_NAME = "consortium.json"


class ConsortiumState(Strict):
    """The file. ``former``: keys of sites that were accepted before and are no longer in it, so that one of them under another key is noticed."""

    format: Literal[1] = 1
    sites: Mapping[SiteName, IdentityKey] = Field(default_factory=dict)
    former: Mapping[SiteName, IdentityKey] = Field(default_factory=dict)
    accepted_unix: int = 0
    accepted_by: str = ""


@dataclass(frozen=True)
class Owner:
    """The site whose home it is, and its own identity key in hex."""

    site: str
    key: str


@dataclass(frozen=True)
class Difference:
    """What another consortium changes, by names of sites: who comes, who goes, and whose key is another than was ever accepted.

    ``own_key``: the site itself has another key than when it accepted.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    own_key: bool = False

    @property
    def is_none(self) -> bool:
        """Whether it is the same consortium."""
        return not (self.added or self.removed or self.changed or self.own_key)


def difference(state: ConsortiumState, document: ConsortiumDocument, owner: Owner) -> Difference:
    """What accepting a file would change. The site's own key is compared with the key itself, and so never counts as changed."""
    known = {**state.former, **state.sites}
    changed = [site for site, key in document.sites.items() if known.get(site, key) != key and site != owner.site]
    return Difference(
        added=tuple(sorted(set(document.sites) - set(state.sites) - set(changed))),
        removed=tuple(sorted(set(state.sites) - set(document.sites))),
        changed=tuple(sorted(changed)),
        own_key=state.sites.get(owner.site, owner.key) != owner.key,
    )


def check_own_key(sites: Mapping[str, str], owner: Owner) -> None:
    """Refuses a consortium that lacks the site itself, or names another key for it.

    Raises:
        ConsortiumRefused: reason ``own-site`` or ``own-key``.
    """
    key = sites.get(owner.site)
    if key is None:
        raise ConsortiumRefused(
            f"site {owner.site} is not in this consortium itself.",
            hint="Ask for a file that names it; the coordinator's people write it from the sites that have joined.",
            reason="own-site",
            peer=owner.site,
        )
    if key != owner.key:
        raise ConsortiumRefused(
            f"this consortium names another key for site {owner.site} than the site's own.",
            hint="If the site has joined anew since, ask for a newer file. Otherwise somebody has put another key in its place.",
            reason="own-key",
            peer=owner.site,
        )


def check_acceptable(document: ConsortiumDocument, owner: Owner, found: Difference, new_keys: Collection[str]) -> None:
    """What must hold before a person is asked whether the fingerprint is right; ``new_keys`` as in ``AcceptedConsortium.accept``.

    Raises:
        ConsortiumRefused: it lacks the site or its key, or a known site's key has changed and nobody has said so.
    """
    check_own_key(document.sites, owner)
    for site in found.changed:
        if site not in new_keys:
            raise ConsortiumRefused(
                f"THE KEY OF SITE {site} IS ANOTHER than the one that was accepted before.",
                hint=f"Ask its people, at a number that you know, whether it has joined anew. If it has: add --new-key {site}.",
                reason="changed-key",
                peer=site,
            )


class AcceptedConsortium:
    """``consortium.json`` of one site; a changed file counts from the next look."""

    def __init__(self, path: Path | None) -> None:
        self._file = StateFile(path, ConsortiumState())
        self._made: tuple[ConsortiumState, Consortium] | None = None

    def state(self) -> ConsortiumState:
        """The file.

        Raises:
            StorageError: it cannot be read.
        """
        return self._file.read()

    def consortium(self) -> Consortium | None:
        """The sites and keys that hold now; None when nothing was accepted.

        Raises:
            SecureAggregationRefused: somebody has given two sites one key.
            StorageError: the file cannot be read.
        """
        state, made = self._file.read(), self._made
        if not state.sites:
            return None
        if made is None or made[0] is not state:
            made = self._made = state, consortium_of(state.sites)
        return made[1]

    def accept(
        self, document: ConsortiumDocument, owner: Owner, *, new_keys: Collection[str], by: str, now_unix: int
    ) -> Difference:
        """Puts a file in the place of what was accepted before; returns what that changes.

        Args:
            document: the file.
            owner: the site itself.
            new_keys: sites whose people have said, by phone, that their key is a new one.
            by: who has compared.
            now_unix: when.

        Raises:
            ConsortiumRefused: it lacks the site or its key, or a known site's key has changed and nobody has said so.
            StorageError: the file cannot be read or written.
        """
        found: list[Difference] = []

        def replaced(state: ConsortiumState) -> ConsortiumState:
            found.append(difference(state, document, owner))
            check_acceptable(document, owner, found[-1], new_keys)
            if found[-1].is_none:
                return state
            known = {**state.former, **state.sites}
            former = {site: key for site, key in known.items() if site not in document.sites}
            return ConsortiumState(sites=document.sites, former=former, accepted_unix=now_unix, accepted_by=by)

        self._file.change(replaced)
        return found[-1]

    def remove(self) -> tuple[str, ...]:
        """Takes back what was accepted; returns who was in it. Their keys stay known, so that another one is noticed later.

        Raises:
            StorageError: the file cannot be read or written.
        """
        were = tuple(sorted(self._file.read().sites))
        self._file.change(lambda state: ConsortiumState(former={**state.former, **state.sites}))
        return were
