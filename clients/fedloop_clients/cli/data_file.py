"""Whether the site's rows are there: what `site up` and `site status` say of the data file."""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_missing", "missing_words"]


def is_missing(file: Path) -> bool:
    """False too where it cannot be said: the daemon, as its own user, says why it cannot read it."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def missing_words(file: Path | str) -> str:
    """What follows from it, and what to do."""
    return (
        f"{file} is not there, and the site trains nothing without it: "
        "put the site's rows there, or name their file under [data] in site.toml"
    )
