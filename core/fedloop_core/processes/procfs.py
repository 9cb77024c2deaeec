"""What /proc says of processes: start times, groups, and whose mark they carry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessFacts", "boot_id", "carries", "facts", "group_members"]

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessFacts:
    """``started_ticks``: clock ticks from boot to its start; with the pid and the boot it names one process for ever."""

    pid: int
    group: int
    started_ticks: int
    zombie: bool


def boot_id() -> str:
    """Another after each boot; empty where the system has none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def facts(pid: int) -> ProcessFacts | None:
    """None: there is no such process. Source: proc(5), /proc/pid/stat."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return ProcessFacts(pid, group=int(fields[2]), started_ticks=int(fields[19]), zombie=fields[0] in "ZX")


def group_members(group: int) -> tuple[ProcessFacts, ...]:
    """The living processes of a process group."""
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    known = (facts(pid) for pid in pids)
    return tuple(fact for fact in known if fact is not None and fact.group == group and not fact.zombie)


def carries(pid: int, name: str, value: str) -> bool:
    """Whether the process was started with this variable; False where its environment cannot be read."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{name}={value}".encode() in environment.split(b"\0")
