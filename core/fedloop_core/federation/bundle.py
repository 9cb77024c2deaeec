"""Flower's app bundle: configuration only, the same bytes everywhere, and the only one that a closed folder lets run.

Flower installs the bundle that a run brings into ``FLWR_HOME/apps``, under a name that ends in its digest, and leaves a
folder of that name alone when it is there. Where our bundle lies in a folder that cannot be written, every other bundle fails
before its code is loaded; ``fedloop_core.federation.closed_apps`` holds shut what a crafted version would open.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fedloop_core.durable import write_bytes
from fedloop_core.errors import ProcessFailed
from fedloop_core.processes.environment import flower_environment, python_environment

__all__ = ["BUNDLE_DIGEST", "HOME_KEY", "RUN_KEY", "install_bundle", "write_bundle"]

HOME_KEY = "fedloop-home"
RUN_KEY = "fedloop-run"
BUNDLE_DIGEST = "1cdd4c3d4ec51b6bab6f06497f2476d1935fe5fc1c980572e7afa291280294e2"
"""SHA-256 of the bundle in hex. Coordinator and sites must agree on it, whatever versions of tools they have."""

_SECONDS = 120.0
_TEXT = f"""\
# Written by fedloop. The version is the bundle's format, not fedloop's: sites accept one bundle, byte by byte.
[project]
name = "fedloop"
version = "1.0.0"
description = "Configuration only: each side runs the fedloop that it installed."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedloop"

[tool.flwr.app.components]
serverapp = "fedloop_server.app:app"
clientapp = "fedloop_clients.app:app"

[tool.flwr.app.config]
{HOME_KEY} = ""
{RUN_KEY} = ""
"""


def write_bundle(folder: Path) -> None:
    """Writes the app folder that ``flwr run`` and ``flwr build`` take.

    Raises:
        StorageError: it cannot be written.
    """
    write_bytes(folder / "pyproject.toml", _TEXT.encode())


def install_bundle(app: Path, flwr_home: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Builds the bundle of ``app``, and makes ``flwr_home/apps`` a folder that holds it alone and cannot be written.

    No process may use ``flwr_home`` meanwhile.

    Args:
        app: as ``write_bundle`` wrote it.
        flwr_home: Flower's folder of the superexec.
        environment: of Flower's commands, beside what they always get.

    Returns:
        The installed bundle's folder: directories 0555, files 0444.

    Raises:
        ProcessFailed: Flower's commands fail, or build other bytes than everybody else's.
    """
    there = _there(flwr_home / "apps")
    if there is not None:
        return there
    flwr_home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".apps-", dir=flwr_home) as temporary:
        fresh = Path(temporary)
        variables = {
            **python_environment(),
            **flower_environment(fresh),
            **(environment or {}),
            "FLWR_HOME": str(fresh),
        }
        _flwr(("build", "--app", str(app.resolve())), fresh, variables)
        bundle = next(fresh.glob("*.fab"))
        digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
        if digest != BUNDLE_DIGEST:
            raise ProcessFailed(
                f"Flower's build command here makes another bundle ({digest[:8]}) than is agreed ({BUNDLE_DIGEST[:8]}).",
                hint="Install fedloop with its constraints.txt, and leave the bundle's folder as it was written.",
            )
        _flwr(("install", str(bundle)), fresh, variables)
        installed = next((fresh / "apps").iterdir()).name
        _open(flwr_home / "apps")
        shutil.rmtree(flwr_home / "apps", ignore_errors=True)
        (fresh / "apps").rename(flwr_home / "apps")
    _close(flwr_home / "apps")
    return flwr_home / "apps" / installed


def _there(apps: Path) -> Path | None:
    """The installed bundle, when it lies there alone and closed already."""
    if not apps.is_dir() or apps.is_symlink():
        return None
    names = [entry.name for entry in apps.iterdir()]
    if names != [f"fedloop.fedloop.1.0.0.{BUNDLE_DIGEST[:8]}"]:
        return None
    file = apps / names[0] / "pyproject.toml"
    places = (apps, file.parent, file)
    return file.parent if all(place.exists() and not place.stat().st_mode & 0o222 for place in places) else None


def _flwr(words: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
    """Flower's commands end with status 0 on some failures: the caller looks for what they should have made."""
    program = Path(sys.executable).with_name("flwr")
    try:
        done = subprocess.run(  # noqa: S603 - our own words and Flower's program
            (str(program), *words),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProcessFailed(f"`flwr {words[0]}` cannot be run: {error}.") from error
    made = any(folder.glob("*.fab")) if words[0] == "build" else (folder / "apps").is_dir()
    if done.returncode != 0 or not made:
        said = " ".join((done.stderr or done.stdout).decode("utf-8", "replace").split())[-300:]
        raise ProcessFailed(f"`flwr {words[0]}` failed: {said}", hint="Install fedloop anew.")


def _open(apps: Path) -> None:
    for place, _, _ in os.walk(apps):
        Path(place).chmod(0o755)


def _close(apps: Path) -> None:
    for place, _, files in os.walk(apps, topdown=False):
        for name in files:
            Path(place, name).chmod(0o444)
        Path(place).chmod(0o555)
