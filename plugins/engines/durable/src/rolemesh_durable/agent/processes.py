"""What Linux says of a process, in its line of ``/proc/<pid>/stat``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_stopped", "start_time"]


def start_time(pid: int) -> int:
    """When the process started, in clock ticks since boot: with its pid its identity. -1 if it is gone or a zombie."""
    try:
        fields = _fields(pid)
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Whether a signal, or a tracer, has stopped the process."""
    try:
        return _fields(pid)[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _fields(pid: int) -> list[str]:
    """Those after the name, which may hold spaces and brackets: the first is the state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
