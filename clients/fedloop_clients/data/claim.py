"""One ledger for one file of rows: a mark beside the file says whose ledger its rows are charged to.

A second installation on the same rows would have a second ledger, and so the budget for life twice. Neither site nor
coordinator can see that from ledgers or digests, which have secrets of their own; the file itself can carry it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from fedloop_core.durable import sync_path, write_bytes
from fedloop_core.errors import DataClaimed, StorageError
from fedloop_core.federation.names import SiteName
from fedloop_core.strict import Strict

if TYPE_CHECKING:
    from fedloop_clients.home import SiteHome

__all__ = ["Claim", "ClaimFound", "claim_file", "claim_rows", "find_claim"]

_LOG = logging.getLogger(__name__)
_DOMAIN = b"fedloop rows are charged to the ledger of\0"
_CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTSUP})


class Claim(Strict):
    """The mark: ``holder`` is the site's name under its own secret, so that a copy of the home under another name differs."""

    format: Literal[1] = 1
    site: SiteName
    home: str
    holder: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    since_unix: int


@dataclass(frozen=True)
class ClaimFound:
    """The mark beside a data file, and whether it is this site's; ``claim`` is None when there is none."""

    file: Path
    claim: Claim | None
    own: bool


def claim_file(data_file: Path) -> Path:
    """Beside the file that a path leads to, through links too."""
    real = data_file.resolve()
    return real.with_name(f"{real.name}.fedloop-ledger.json")


def find_claim(home: SiteHome) -> ClaimFound:
    """Looks, and changes nothing.

    Raises:
        NotSetUp, SettingsInvalid: the site has no name or no secret yet.
        DataClaimed: there is a mark that cannot be read: it may be anybody's.
    """
    file = claim_file(home.data_file)
    try:
        claim = Claim.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return ClaimFound(file, None, own=False)
    except (OSError, ValidationError) as error:
        raise DataClaimed(
            f"{file} cannot be read: the rows may be charged to another ledger.", hint=_advice(file)
        ) from error
    return ClaimFound(file, claim, own=hmac.compare_digest(claim.holder, _holder(home)))


def claim_rows(home: SiteHome) -> None:
    """Marks the site's data file as charged to its ledger; nothing when it is marked so already.

    A folder that the site may not write to is left as it is, with a warning: then no second ledger would be noticed.

    Raises:
        DataClaimed: the file is another ledger's, and site.toml does not say that people know of both.
        NotSetUp, SettingsInvalid: the site has no name or no secret yet.
        StorageError: the mark cannot be written, as on a full disk.
    """
    found = find_claim(home)
    if found.claim is None:
        _write(home, found.file)
        found = find_claim(home)  # two may have tried at once
    if found.claim is None or found.own:
        return
    said = (
        f"{home.data_file} is charged to the ledger of site {found.claim.site} in {found.claim.home}: a second ledger would "
        "give the same people their budget twice."
    )
    if not home.settings.data.second_ledger:
        raise DataClaimed(said, hint=_advice(found.file))
    _LOG.warning("%s site.toml says that people know (data.second_ledger)", said)


def _write(home: SiteHome, file: Path) -> None:
    """The mark comes whole, and never in the place of another."""
    if not file.parent.is_dir():
        return  # reading the rows says so
    claim = Claim(site=home.membership().site, home=str(home.folder), holder=_holder(home), since_unix=int(time.time()))
    written = file.with_name(f".{file.name}.{claim.holder[:8]}")
    try:
        write_bytes(written, claim.model_dump_json(indent=1).encode() + b"\n")
        with contextlib.suppress(FileExistsError):
            os.link(written, file)
        sync_path(file.parent)
    except (OSError, StorageError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not (isinstance(cause, OSError) and cause.errno in _CLOSED):
            raise
        _LOG.warning(
            "%s cannot be marked as this ledger's: no second ledger on these rows would be noticed", home.data_file
        )
    finally:
        with contextlib.suppress(OSError):
            written.unlink()


def _holder(home: SiteHome) -> str:
    return hmac.digest(home.fingerprint_secret(), _DOMAIN + home.membership().site.encode(), hashlib.sha256).hex()


def _advice(file: Path) -> str:
    return (
        f"Bring that ledger here; or, when it is lost or of other rows, remove {file}; or, when people know "
        "of both and bear what they spend together, set data.second_ledger in site.toml."
    )
