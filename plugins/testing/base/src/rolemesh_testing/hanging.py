"""Time limits for plugins that do not answer. After several hangs the kit asks a plugin no further questions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

__all__ = ["HANGS", "IMPORT_S", "Hung", "Limit", "communicated", "fresh_python", "has_hung", "limit_of"]

HANGS = 3
"""Number of hung tests of a class after which its other tests fail at once. Each would take as long."""
IMPORT_S = 60.0
"""Time limit of an import in seconds. A good import takes less than one."""


QUEUED_S = 0.05
"""Seconds after which it is asked again whether a process waits for a processor: more than a tick of the kernel."""


class Hung(AssertionError):
    """The plugin did not answer in time."""


def has_hung(error: BaseException) -> bool:
    """True if a test failed because something did not end, as the kit or pytest-timeout reports."""
    return isinstance(error, Hung) or str(error).startswith("Timeout (>")


class Limit:
    """The time limit of another process.

    The time in which that process waits for a processor does not count. A busy machine therefore causes no hang.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid, self._until = pid, monotonic() + limit_s - _queued_s(pid)

    @property
    def left_s(self) -> float:
        """Seconds until the limit; 0 after it. A process that waits for a processor just now has a little longer."""
        left = self._until + _queued_s(self._pid) - monotonic()
        return left if left > 0 else QUEUED_S if _is_queued(self._pid) else 0.0


def _queued_s(pid: int) -> float:
    """Return the seconds for which a process's main thread was ready to run but had no processor; 0.0 if unknown.

    The source is Linux' ``/proc/PID/schedstat``, described in its Documentation/scheduler/sched-stats.rst.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


def _is_queued(pid: int) -> bool:
    """Return whether a process's main thread is ready to run but has no processor.

    Linux adds a wait to schedstat only when it is over, so `_queued_s` lacks the present one.
    """
    try:
        stat, before = (Path(f"/proc/{pid}/{name}").read_text() for name in ("stat", "schedstat"))
        sleep(QUEUED_S)
        after = Path(f"/proc/{pid}/schedstat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2].startswith("R") and before.split()[0] == after.split()[0]


def communicated(process: subprocess.Popen[bytes], limit_s: float, data: bytes | None = None) -> tuple[bytes, bytes]:
    """Send `data` to a process, wait for its end, and return its stdout and stderr.

    Kills the process and raises `subprocess.TimeoutExpired` with its output if it takes longer than `limit_s` seconds.
    """
    limit, given = Limit(process.pid, limit_s), data
    while (left := limit.left_s) > 0:
        try:
            return process.communicate(given, left)
        except subprocess.TimeoutExpired:
            given = None  # `communicate` goes on with what it has begun to send
    process.kill()
    raise subprocess.TimeoutExpired(process.args, limit_s, *process.communicate())


def fresh_python(code: str, limit_s: float = IMPORT_S) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh process with this one's import path. Raises `Hung` if it does not end."""
    start = f"import sys; sys.path[:] = {[*filter(None, sys.path)]!r}; "
    command = [sys.executable, "-c", start + code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        printed, said = communicated(process, limit_s)
    except subprocess.TimeoutExpired:
        raise Hung(f"a fresh process does not end within {limit_s:g} s: {code}") from None
    return subprocess.CompletedProcess(command, process.returncode, printed.decode(), said.decode())


def limit_of(cls: Any) -> float:
    """Return the time limit of a standard test of the class `cls`, in seconds: the time for three answers."""
    return float(3 * cls.timeout_s)
