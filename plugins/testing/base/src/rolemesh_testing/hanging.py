"""Time limits for plugins that do not answer. After several hangs the kit asks a plugin no further questions."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

__all__ = ["HANGS", "IMPORT_S", "Hung", "Limit", "communicated", "fresh_python", "has_hung", "limit_of", "spent_s"]

HANGS = 3
"""Number of hung tests of a class after which its other tests fail at once. Each would take as long."""
IMPORT_S = 60.0
"""Time limit of an import in seconds. A good import takes less than one."""


READY_S = 0.05
"""Seconds that a process which is ready to run has beyond its limit, again and again."""


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
        self._pid, self._limit_s = pid, limit_s
        self._ran_s, queued = spent_s(pid)
        self._until = monotonic() + limit_s - queued

    @property
    def left_s(self) -> float:
        """Seconds until the limit; 0 after it.

        Linux counts a wait for a processor only when it is over. A process that is ready to run therefore has a little
        longer, until it has run for as long as its limit.
        """
        ran, queued = spent_s(self._pid)
        left = self._until + queued - monotonic()
        return left if left > 0 else READY_S if ran - self._ran_s < self._limit_s and _is_ready(self._pid) else 0.0


def spent_s(pid: int) -> tuple[float, float]:
    """Return the seconds for which a process's main thread ran, and was ready to run but had no processor; 0.0 if
    unknown.

    The source is Linux' ``/proc/PID/schedstat``, described in its Documentation/scheduler/sched-stats.rst.
    """
    try:
        ran, queued, *_ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return int(ran) * 1e-9, int(queued) * 1e-9
    except (OSError, ValueError):
        return 0.0, 0.0


def _is_ready(pid: int) -> bool:
    """Return whether a process's main thread runs or waits for a processor."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("R")
    except OSError:
        return False


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
    said = process.communicate()
    if process.returncode != -signal.SIGKILL:
        return said  # it was over by itself, and this process has waited for a processor
    raise subprocess.TimeoutExpired(process.args, limit_s, *said)


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
