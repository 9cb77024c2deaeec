"""The keys of a release repository: Ed25519, one PEM file per role, readable by the owner alone.

``offline/`` holds the keys of ``root`` and ``targets``: needed to create the repository, to delegate a task and to renew
those two roles, and to be kept elsewhere in between. ``online/`` holds the keys that publish.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner, Key

from fedloop_core.durable import write_secret
from fedloop_core.errors import StorageError, TrustError

__all__ = ["OFFLINE_ROLES", "KeyFolder"]

OFFLINE_ROLES = frozenset({"root", "targets"})


class KeyFolder:
    """Signers by role, from files; nothing is cached, so that a key that was taken away is not used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, role: str) -> Path:
        """The file of a role's private key."""
        return self._folder / ("offline" if role in OFFLINE_ROLES else "online") / f"{role}.pem"

    def create(self, role: str) -> CryptoSigner:
        """The signer of a role; a key is made when the role has none yet.

        Raises:
            StorageError: the folder cannot be written.
            TrustError: the file that is there cannot be used.
        """
        path = self.path(role)
        if path.exists():
            return self.signer(role)
        made = CryptoSigner.generate_ed25519()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_secret(path, made.private_bytes)
        return made

    def signer(self, role: str, expected: Key | None = None) -> CryptoSigner:
        """The signer of a role, refused when it is not the key ``expected`` by the metadata.

        Raises:
            StorageError: the key is not there.
            TrustError: it can be read by others, is not an Ed25519 key, or is another than the one expected.
        """
        path = self.path(role)
        try:
            if path.stat().st_mode & 0o077:
                raise TrustError(f"{path} can be read by others.", hint="chmod 600 it, and replace the key.")
            key = load_pem_private_key(path.read_bytes(), password=None)
        except OSError as error:
            raise StorageError(
                f"the key of role {role} is not at {path}: {error.strerror}.", hint="Bring the key file back."
            ) from error
        except ValueError as error:
            raise TrustError(f"{path} is not a private key in PEM.", hint="Restore it from a backup.") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise TrustError(f"{path} is not an Ed25519 key.", hint="Restore it from a backup.")
        signer = CryptoSigner(key)
        if expected is not None and signer.public_key.keyid != expected.keyid:
            raise TrustError(f"{path} is not the key that role {role} is delegated to.", hint="Restore the right key.")
        return signer
