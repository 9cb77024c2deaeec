"""The consortium as a file that people send each other: names of sites and their identity keys, readable, and a fingerprint of it.

The file need not be secret, and nobody trusts it for where it came from: people at each site compare its fingerprint with the others by
phone before they accept it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedloop_core.errors import SettingsInvalid
from fedloop_core.federation.names import SiteName
from fedloop_core.fingerprints import fingerprint
from fedloop_core.keys import VerifyingKey
from fedloop_core.secure_aggregation.identity import LEAST_SITES, MOST_SITES, Consortium
from fedloop_core.strict import Misfit, Strict
from fedloop_core.toml.reader import DocumentKind, read_document

__all__ = [
    "ConsortiumDocument",
    "IdentityKey",
    "consortium_fingerprint",
    "consortium_of",
    "key_fingerprint",
    "read_consortium",
    "written_consortium",
]

IdentityKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""32 raw bytes of an Ed25519 public key, in hex."""

_MAXIMUM_BYTES = 256 * 1024
_COMPARED_BYTES = 24  # whoever makes two files with one fingerprint, one for each half of the sites, tries 2**96 times
_HEAD = """\
# Sites and their identity keys, for secure aggregation. Nothing here is secret, and nothing is to be believed because of who sent it.
# At each site: fedloop site consortium accept THIS-FILE. It shows a fingerprint: compare it by phone with people of the other sites.
format = 1

[sites]
"""


class ConsortiumDocument(Strict):
    """The whole file: the identity key of each site."""

    format: Literal[1]
    sites: Annotated[Mapping[SiteName, IdentityKey], Field(min_length=LEAST_SITES, max_length=MOST_SITES)]

    @model_validator(mode="after")
    def _has_each_key_once(self) -> Self:
        owners: dict[str, str] = {}
        twice = []
        for site, key in self.sites.items():
            first = owners.setdefault(key, site)
            if first != site:
                twice.append((("sites", site), f"sites.{site} has the key of {first}: each site has one of its own"))
        if twice:
            raise Misfit(*twice)
        return self

    def consortium(self) -> Consortium:
        """What secure aggregation checks keys with."""
        return consortium_of(self.sites)


def read_consortium(path: Path) -> ConsortiumDocument:
    """Reads a consortium file.

    Raises:
        SettingsInvalid: it cannot be read, is too long, or holds something else; each mistake is named with its line.
    """
    hint = "`fedloop server consortium export --out FILE` writes one at the coordinator."
    kind = DocumentKind(
        ConsortiumDocument, "consortium file", hint, "site", SettingsInvalid, SettingsInvalid, _MAXIMUM_BYTES
    )
    return read_document(path, kind)


def written_consortium(sites: Mapping[str, str]) -> str:
    """The text of a consortium file.

    Args:
        sites: identity key (hex) of each site.

    Raises:
        ValidationError: they are too few, too many, or share a key.
    """
    document = ConsortiumDocument(format=1, sites=dict(sorted(sites.items())))
    return _HEAD + "".join(f'{site} = "{key}"\n' for site, key in document.sites.items())


def consortium_of(sites: Mapping[str, str]) -> Consortium:
    """The consortium of these sites; their keys in hex.

    Raises:
        SecureAggregationRefused: two have one key.
    """
    return Consortium({site: VerifyingKey(bytes.fromhex(key)) for site, key in sites.items()})


def consortium_fingerprint(consortium: Consortium) -> str:
    """Of all names and keys together, for comparing by phone.

    Longer than that of a key: who makes the file is not trusted, and could look for two that have one fingerprint.
    """
    return fingerprint(bytes.fromhex(consortium.digest), _COMPARED_BYTES)


def key_fingerprint(key: VerifyingKey) -> str:
    """Of one site's identity key, for comparing by phone: the first 16 bytes of its SHA-256."""
    return fingerprint(bytes.fromhex(key.key_id))
