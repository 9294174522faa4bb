"""A plugin that does not come back: each test has a time limit, and one that has hung often is not asked again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

__all__ = ["HANGS", "IMPORT_S", "Hung", "Limit", "communicated", "fresh_python", "has_hung", "limit_of"]

HANGS = 3
"""After so many tests of a class that have hung, its others fail at once: each would take as long."""
IMPORT_S = 60.0
"""The limit of an import in seconds, which is to take well under one."""


class Hung(AssertionError):
    """What was asked of the plugin has not ended in time."""


def has_hung(error: BaseException) -> bool:
    """Whether a test failed because something did not end: the kit says so, or pytest-timeout."""
    return isinstance(error, Hung) or str(error).startswith("Timeout (>")


class Limit:
    """The time limit of another process. The time in which that waits for a processor does not count, so that a busy
    machine makes nothing hang."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid, self._until = pid, monotonic() + limit_s - _queued_s(pid)

    @property
    def left_s(self) -> float:
        """The seconds until the limit; 0 from then on."""
        return max(0.0, self._until + _queued_s(self._pid) - monotonic())


def _queued_s(pid: int) -> float:
    """How long the main thread of a process has been ready to run on a processor that others used; 0.0 if nobody knows.

    From Linux' ``/proc/PID/schedstat``, described in its Documentation/scheduler/sched-stats.rst.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


def communicated(process: subprocess.Popen[bytes], limit_s: float, data: bytes | None = None) -> tuple[bytes, bytes]:
    """Stdout and stderr of a process that gets `data`, once it has ended.

    Raises `subprocess.TimeoutExpired` with its output if it does not end within `limit_s` seconds; then it is killed.
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
    """`code` in a fresh process with this one's import path. Raises `Hung` if it does not end."""
    start = f"import sys; sys.path[:] = {[*filter(None, sys.path)]!r}; "
    command = [sys.executable, "-c", start + code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        printed, said = communicated(process, limit_s)
    except subprocess.TimeoutExpired:
        raise Hung(f"a fresh process does not end within {limit_s:g} s: {code}") from None
    return subprocess.CompletedProcess(command, process.returncode, printed.decode(), said.decode())


def limit_of(cls: Any) -> float:
    """The limit of a standard test of the class `cls` in seconds: what three answers may take."""
    return float(3 * cls.timeout_s)
