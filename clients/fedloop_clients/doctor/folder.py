"""The site's own folder: files and rights, site.toml, membership, certificate."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedloop_clients.doctor.finding import Finding, fine, problem, warning
from fedloop_clients.doctor.scene import Scene
from fedloop_clients.joining.keys import public_key_of, public_side_of
from fedloop_core.certificates import certificate_validity
from fedloop_core.errors import FedloopError, NotSetUp, SettingsInvalid

__all__ = ["CertificateCheck", "FilesCheck", "MembershipCheck", "SettingsCheck"]

_DAY = 86_400
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH  # where it is sticky, each user takes away its own files alone
_SOON = 0.25  # of a certificate's life: it renews itself at half of it


@dataclass(frozen=True)
class FilesCheck:
    """Whether the folder is there, and its secrets are their owner's alone."""

    name: str = "files"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        home = scene.home
        if not home.folder.is_dir():
            yield warning(f"there is no folder {home.folder} yet.", "Run: fedloop site join TOKEN, or give --home.")
            return
        secret = (
            home.site_key,
            home.node_key,
            home.signing_key_file,
            home.superexec_secret,
            home.fingerprint_secret_file,
        )
        joined = home.membership_file.exists()
        missing = [path for path in (*secret, home.site_certificate, home.authorities) if not path.exists()]
        if joined and missing:
            names = ", ".join(path.name for path in missing)
            yield problem(f"{home.keys} lacks {names}.", "Restore it from a backup, or join again with a new token.")
        open_files = [path for path in (home.keys, *secret) if path.exists() and _mode(path) & _OTHERS]
        for path in open_files:
            right = "700" if path.is_dir() else "600"
            yield problem(f"others may use {path} (mode {_mode(path):o}).", f"Run: chmod {right} {path}")
        if _mode(home.folder) & _WRITABLE_BY_OTHERS and not _mode(home.folder) & stat.S_ISVTX:
            yield problem(f"others may write to {home.folder}.", f"Run: chmod go-w {home.folder}")
        if home.settings_file.exists() and _mode(home.settings_file) & _OTHERS and "@" in scene.proxy_url:
            yield warning(
                "others may read site.toml, and its proxy has a password.", f"Run: chmod 600 {home.settings_file}"
            )
        if not open_files and not (joined and missing):
            yield fine(f"{home.folder} is in order.")


@dataclass(frozen=True)
class SettingsCheck:
    """Whether site.toml is right; each mistake is told."""

    name: str = "site.toml"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        try:
            settings = scene.home.settings
        except SettingsInvalid as error:
            for line in error.problems or (error.message,):
                yield problem(line, error.hint or "Correct it.")
            return
        except NotSetUp as error:
            if scene.home.membership_file.exists():
                yield problem(error.message, "Restore it from a backup, or run the same `fedloop site join` again.")
            return
        membership = scene.membership()
        if membership is not None and membership.site != settings.site:
            yield problem(
                f"{scene.home.settings_file} says site {settings.site!r}, and the site joined as {membership.site!r}.",
                f'Write site = "{membership.site}".',
            )
            return
        if settings.policy.paused or scene.home.standing().read().paused:
            yield warning(f"site {settings.site} pauses: it refuses all training.", "Run: fedloop site unpause")
        yield fine(f"site.toml of site {settings.site} is right.")


@dataclass(frozen=True)
class MembershipCheck:
    """Whether the site has joined."""

    name: str = "membership"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        try:
            membership = scene.home.membership()
        except NotSetUp as error:
            yield warning("the site has not joined yet.", error.hint)
            return
        if scene.home.standing().read().leaving:
            yield warning(f"site {membership.site} is leaving the federation.", "Nothing is to be done.")
        yield fine(f"joined as {membership.site}; front {membership.fleet_address}, hub {membership.hub_address}.")


@dataclass(frozen=True)
class CertificateCheck:
    """Whether the site's certificate fits its key, and how long it holds."""

    name: str = "certificate"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        home, membership = scene.home, scene.membership()
        if membership is None or not home.site_certificate.exists():
            return
        chain = home.site_certificate.read_bytes()
        begin, end = certificate_validity(chain)
        left = end - scene.clock()
        renewing = "Run: fedloop site renew" + (" --certificate FILE --key FILE" if membership.own_authority else "")
        own = public_side_of(home.site_key.read_bytes(), str(home.site_key)) if home.site_key.exists() else b""
        if own and own != public_key_of(chain, str(home.site_certificate)):
            yield problem("the site's certificate is not over the site's key.", renewing)
            return
        if left < 0:
            yield problem(f"the site's certificate expired {-left / _DAY:.1f} days ago.", renewing)
        elif begin > scene.clock():
            yield problem("the site's certificate is not valid yet.", "This machine's clock is behind: set it.")
        elif left < _SOON * (end - begin):
            why = "the institution renews it" if membership.own_authority else "it should have renewed itself"
            yield warning(f"the site's certificate holds {left / _DAY:.1f} more days; {why}.", renewing)
        else:
            yield fine(f"the site's certificate holds {left / _DAY:.0f} more days.")


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise FedloopError(f"cannot look at {path}: {error.strerror}.", hint="Run as the site's own user.") from error
