"""Times, durations, bytes and estimates in words, and the times that people type."""

from __future__ import annotations

import datetime as dt
import re

from fedloop_core.errors import UsageError
from fedloop_server.cli.run_documents import EstimateDocument

__all__ = ["bytes_words", "estimate_words", "every_words", "moment", "parse_at", "parse_every", "took_words", "zoned"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"(?:\d+[smhdw])+")
_SHORTEST_EVERY = 60.0
_LONGEST_EVERY = 366 * 86_400.0


def moment(unix: float | None) -> str:
    """A time of this machine's zone, to the minute."""
    return "-" if unix is None else dt.datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M")


def zoned(unix: float) -> str:
    """A time of this machine's zone, to the minute, with the zone."""
    return dt.datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def every_words(seconds: float) -> str:
    """How often: ``7 days``, ``1 day 12 hours``, ``30 minutes``."""
    left, words = round(seconds), []
    for length, unit in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        count, left = divmod(left, length)
        if count:
            words.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(words)


def took_words(seconds: float | None) -> str:
    """A duration: ``4.2 s``, ``3 min 05 s``, ``2 h 10 min``, ``3 d 4 h``."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def bytes_words(count: int) -> str:
    """A size: ``512 B``, ``3.4 MB``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return "-"


def estimate_words(found: EstimateDocument | None) -> str:
    """An estimate with its interval."""
    return "-" if found is None else f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def parse_every(text: str) -> float:
    """Seconds of an interval such as ``7d``, ``12h`` or ``1d12h``.

    Raises:
        UsageError: it is none, or shorter than a minute or longer than a year.
    """
    clean = text.strip().lower()
    if not _SPAN.fullmatch(clean):
        raise UsageError(f"--every {text!r} is no interval.", hint="Write it as 7d, 12h, 30m or 1d12h.")
    seconds = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhdw])", clean))
    if not _SHORTEST_EVERY <= seconds <= _LONGEST_EVERY:
        raise UsageError(f"--every {text!r} must be between a minute and a year.", hint="Write it as 7d or 12h.")
    return float(seconds)


def parse_at(text: str, now: dt.datetime) -> float:
    """Seconds since 1970 of a moment: ``02:30`` (the next one), ``2027-01-31 02:30``, or with a zone as ISO 8601 has it.

    Args:
        text: as typed; without a zone it is this machine's time.
        now: the present moment, with a zone.

    Raises:
        UsageError: it is none, or lies in the past.
    """
    clean = text.strip()
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}", clean):
            hour, minute = map(int, clean.split(":"))
            at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (at if at > now else at + dt.timedelta(days=1)).timestamp()
        found = dt.datetime.fromisoformat(clean)
    except ValueError:
        raise UsageError(f"--at {text!r} is no time.", hint="Write it as 02:30 or 2027-01-31T02:30.") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=now.tzinfo)
    if found <= now:
        raise UsageError(f"--at {text!r} has passed.", hint="Leave --at out to start now.")
    return found.timestamp()
