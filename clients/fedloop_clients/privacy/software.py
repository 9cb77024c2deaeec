"""What computed a charge: versions of the libraries that accounting, noise and training rest on, and a hash of our code."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import fedloop_clients
import fedloop_core

__all__ = ["code_digest", "versions"]

_LIBRARIES = ("fedloop", "dp-accounting", "numpy", "opacus", "opendp", "randomgen", "scipy", "torch")


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions of Python and of the libraries, by name."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in _LIBRARIES}


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Hex SHA-256 over every Python file of the site's packages: its path in the package, its length, its bytes."""
    state = hashlib.sha256()
    for package in (fedloop_clients, fedloop_core):
        for root in package.__path__:
            for path in sorted(Path(root).rglob("*.py")):
                content = path.read_bytes()
                name = f"{package.__name__}/{path.relative_to(root).as_posix()}".encode()
                for part in (name, content):
                    state.update(len(part).to_bytes(8, "big") + part)
    return state.hexdigest()
