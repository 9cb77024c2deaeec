"""A site's home: one folder with its settings, keys, ledger and logs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from fedloop_clients.approvals import FILE_NAME as APPROVALS
from fedloop_clients.approvals import Approvals
from fedloop_clients.consortium import FILE_NAME as CONSORTIUM
from fedloop_clients.consortium import AcceptedConsortium, Owner
from fedloop_clients.erasure import FILE_NAME as ERASED
from fedloop_clients.erasure import ErasedPeople
from fedloop_clients.settings import SiteSettings, load_settings
from fedloop_clients.standing import FILE_NAME as STANDING
from fedloop_clients.standing import StandingFile
from fedloop_clients.trusted import FILE_NAME as TRUSTED
from fedloop_clients.trusted import TrustedFile
from fedloop_core.audit import AuditLog
from fedloop_core.durable import write_bytes
from fedloop_core.errors import NotSetUp, SettingsInvalid, StorageError
from fedloop_core.federation.names import SiteName
from fedloop_core.keys import SigningKey, VerifyingKey
from fedloop_core.strict import Strict

if TYPE_CHECKING:
    from fedloop_clients.outbox import Outbox
    from fedloop_clients.privacy.ledger import Ledger

__all__ = ["Membership", "SiteHome"]

_JOIN = "Run: fedloop site join TOKEN"


class Membership(Strict):
    """What the coordinator said when the site joined; ``coordinator_key`` is the one whose envelopes are acted on.

    ``coordinator_key``: 32 raw bytes in hex. ``fleet_address`` and ``hub_address``: host:port. ``own_authority``: the
    site's certificate comes from the institution's own authority, and the coordinator cannot renew it.
    """

    format: Literal[1] = 1
    site: SiteName
    coordinator_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    fleet_address: str
    hub_address: str
    protocol: int
    joined_unix: int
    own_authority: bool = False


class SiteHome:
    """The folder of one site; nothing is read or made before it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings_file = folder / "site.toml"
        self.membership_file = folder / "membership.json"
        self.keys = folder / "keys"
        self.site_key = self.keys / "site.key"
        self.site_certificate = self.keys / "site.pem"
        self.authorities = self.keys / "authorities.pem"
        self.node_key = self.keys / "node.key"
        self.node_key_public = self.keys / "node.key.pub"
        self.signing_key_file = self.keys / "signing.pem"
        self.superexec_secret = self.keys / "superexec.secret"
        self.fingerprint_secret_file = self.keys / "fingerprint.secret"
        self.ledger_file = folder / "ledger.db"
        self.outbox_file = folder / "outbox.db"
        self.feedback_file = folder / "feedback.db"
        self.audit_file = folder / "audit.jsonl"
        self.flower = folder / "flower"
        self.logs = folder / "logs"
        self.sockets = folder / "sockets"
        self.daemon_socket = self.sockets / "daemon.sock"
        self.supervisor_file = folder / "supervisor.json"
        self.standing_file = folder / STANDING
        self.shut_out_file = folder / "shut-out"  # there while the coordinator says that it has revoked this site
        self.approvals_file = folder / APPROVALS
        self.trusted_file = folder / TRUSTED
        self.erased_file = folder / ERASED
        self.consortium_file = folder / CONSORTIUM

    @property
    def settings(self) -> SiteSettings:
        """site.toml as it is now.

        Raises:
            NotSetUp: there is none.
            SettingsInvalid: it has mistakes.
        """
        return load_settings(self.settings_file)

    @property
    def data_file(self) -> Path:
        """The file with the site's rows.

        Raises:
            NotSetUp, SettingsInvalid: as ``settings``.
        """
        return self.folder / Path(self.settings.data.file).expanduser()

    def membership(self) -> Membership:
        """What the coordinator said when the site joined.

        Raises:
            NotSetUp: the site has not joined.
            SettingsInvalid: membership.json was altered.
        """
        try:
            return Membership.model_validate_json(self.membership_file.read_bytes())
        except FileNotFoundError as error:
            raise NotSetUp(f"{self.folder} holds no site that has joined.", hint=_JOIN) from error
        except OSError as error:
            raise StorageError(f"cannot read {self.membership_file}: {error.strerror}.") from error
        except ValidationError as error:
            raise SettingsInvalid(
                f"{self.membership_file} is not what joining wrote.", hint="Restore it from a backup, or join again."
            ) from error

    def store_membership(self, membership: Membership) -> None:
        """Writes membership.json, whole or not at all.

        Raises:
            StorageError: the disk is full or the folder cannot be written.
        """
        write_bytes(self.membership_file, membership.model_dump_json(indent=1).encode() + b"\n")

    def signing_key(self) -> SigningKey:
        """The key that signs the site's answers.

        Raises:
            NotSetUp: the site has none yet.
        """
        if not self.signing_key_file.exists():
            raise NotSetUp(f"{self.signing_key_file} is not there.", hint=_JOIN)
        return SigningKey.load_or_create(self.signing_key_file)

    def identity(self) -> Owner:
        """The site's name and its public identity key.

        Raises:
            NotSetUp, SettingsInvalid: as ``membership``, or it has no key.
        """
        return Owner(self.membership().site, self.signing_key().verifying.raw.hex())

    def coordinator_key(self) -> VerifyingKey:
        """The key that was pinned when the site joined.

        Raises:
            NotSetUp, SettingsInvalid: as ``membership``.
        """
        return VerifyingKey(bytes.fromhex(self.membership().coordinator_key))

    def fingerprint_secret(self) -> bytes:
        """The site's own secret for fingerprints of data and for the split into training and evaluation rows.

        Raises:
            NotSetUp: the site has none yet.
            StorageError: it cannot be read.
        """
        try:
            return self.fingerprint_secret_file.read_bytes()
        except FileNotFoundError as error:
            raise NotSetUp(f"{self.fingerprint_secret_file} is not there.", hint=_JOIN) from error
        except OSError as error:
            raise StorageError(f"cannot read {self.fingerprint_secret_file}: {error.strerror}.") from error

    def ledger(self) -> Ledger:
        """The site's ledger, opened; made when it is not there. Signed by the site's key, once it has one.

        Raises:
            StorageError: it cannot be opened, or its chain is broken.
        """
        from fedloop_clients.privacy.ledger import Ledger  # here, since accounting takes a second to import

        key = self.signing_key() if self.signing_key_file.exists() else None
        site = self.membership().site if self.membership_file.exists() else ""
        return Ledger(self.ledger_file, _clock, site=site, key=key)

    def outbox(self) -> Outbox:
        """The site's answers, opened; made when they are not there.

        Raises:
            StorageError: they cannot be opened.
        """
        from fedloop_clients.outbox import Outbox

        return Outbox(self.outbox_file)

    def audit(self) -> AuditLog:
        """The site's log of who did what."""
        return AuditLog(self.audit_file)

    def standing(self) -> StandingFile:
        """Whether the site pauses or leaves."""
        return StandingFile(self.standing_file)

    def approvals(self) -> Approvals:
        """What waits for a person, and what was decided."""
        return Approvals(self.approvals_file)

    def erased(self) -> ErasedPeople:
        """Whose rows are left out of every run.

        Raises:
            NotSetUp: the site has no secret yet.
        """
        return ErasedPeople(self.erased_file, self.fingerprint_secret())

    def consortium(self) -> AcceptedConsortium:
        """With whom the site sums updates securely, by the word of its people."""
        return AcceptedConsortium(self.consortium_file)

    def trusted(self) -> TrustedFile:
        """How new the authorities are that the site trusts."""
        return TrustedFile(self.trusted_file)

    def prepare(self) -> None:
        """Makes the folder, open to pass through and to nobody's eyes, and ``keys``, its owner's alone.

        Raises:
            StorageError: they cannot be made.
        """
        try:
            for folder, mode in ((self.folder, 0o711), (self.keys, 0o700)):
                if not folder.exists():
                    folder.mkdir(parents=True)
                    os.chmod(folder, mode)  # noqa: PTH101  whatever the umask
        except OSError as error:
            raise StorageError(
                f"cannot make {error.filename}: {error.strerror}.", hint="Correct its rights."
            ) from error


def _clock() -> int:
    return int(time.time())
