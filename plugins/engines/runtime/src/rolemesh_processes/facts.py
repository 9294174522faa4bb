"""Linux's information about a process, from ``/proc/<pid>``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["children", "in_group", "is_stopped", "start_time", "worked_s"]

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def start_time(pid: int) -> int:
    """Return the start time of the process in clock ticks since boot; with its pid it is its identity. -1 if it is gone
    or a zombie."""
    try:
        fields = _fields(pid)
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


def children(pid: int) -> list[int]:
    """Return the pids of the living processes that the process (any thread) has started itself."""
    return _living(1, pid)


def in_group(group: int) -> list[int]:
    """Return the pids of the living processes of the process group."""
    return _living(2, group)


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a tracer has stopped the process."""
    try:
        return _fields(pid)[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def worked_s(pid: int) -> float:
    """Return the seconds for which the process (all threads) had a processor, or its first thread waited for one."""
    try:
        used = sum(map(int, _fields(pid)[11:13])) / TICKS_A_SECOND
        return used + int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


def _living(field: int, value: int) -> list[int]:
    """Return the pids of the living processes for which this field after the name has this value."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                fields = _fields(int(entry.name))
                if int(fields[field]) == value and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return sorted(found)


def activity(pid: int) -> tuple[float, bool]:
    """Return the processor seconds of the process (all threads), and whether its first thread sleeps."""
    fields = _fields(pid)
    return sum(map(int, fields[11:13])) / TICKS_A_SECOND, fields[0] == "S"


def _fields(pid: int) -> list[str]:
    """Return the fields after the name, which may contain spaces and brackets. The first one is the state."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
