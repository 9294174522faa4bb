"""The owner's side of the zygote and of the workers that it forks; see `judging`."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from rolemesh_processes.facts import activity
from rolemesh_processes.forking import Frames, fork_serving, send
from rolemesh_processes.judging_worker import DONE, DROP, FORK, GAPS, RAISED, RAN_CODE, REAP, Work, decode, serve_zygote

__all__ = ["TICK_S", "Failed", "JudgeLimits", "Worker", "Zygote"]

TICK_S: Final = 0.05
"""Period in seconds of the checks of limits."""
_SLOW_S: Final = 0.2
"""Seconds that one judgement may take before another worker helps with the others."""
_LONGEST: Final = 1 << 20
"""Largest result of a judgement in bytes."""


class JudgeLimits(NamedTuple):
    """Limits of one judgement. `seconds`: of processor time, and of sleep. The time for which a ready process waits for
    a processor does not count, so that a loaded machine judges as an idle one. `memory_mb`: 10^6 bytes beyond those of
    the process at its start."""

    seconds: float = 5.0
    memory_mb: float = 1000.0
    workers: int = 4
    """Maximum number of workers of one call, as far as there are processors. It begins with one, and another one helps
    when a judgement is slow."""


class Failed(NamedTuple):
    """There is no judgement. The reason is the same if it is tried again."""

    reason: str


class Zygote:
    """The owner's side of the zygote."""

    def __init__(self, work: Work) -> None:
        self._owner = owner = os.getpid()
        self._asking = threading.Lock()
        self.pid, self._socket = fork_serving(lambda own: serve_zygote(own, owner, work), quiet=True, dies=False)

    @property
    def lives(self) -> bool:
        """Whether it can fork for this process."""
        return self._socket.fileno() >= 0 and os.getpid() == self._owner

    def fork(self) -> Worker:
        """Return a new worker."""
        ours, theirs = socket.socketpair()
        with theirs:
            pid = int.from_bytes(self._ask(FORK, b"", theirs.fileno()), "little")
        return Worker(self, pid, ours)

    def reap(self, pid: int) -> int:
        """Kill a worker with what it has started, and return its status as of `os.waitpid`."""
        return int.from_bytes(self._ask(REAP, pid.to_bytes(8, "little")), "little")

    def drop(self, pid: int) -> None:
        """Kill a worker with what it has started, and do not wait for its end."""
        with self._asking:
            self._socket.sendall(DROP + pid.to_bytes(8, "little"))

    def close(self) -> None:
        """End it with all workers."""
        with self._asking:
            self._socket.close()
        if os.getpid() == self._owner:
            os.waitpid(self.pid, 0)

    def _ask(self, kind: bytes, body: bytes, *files: int) -> bytes:
        with self._asking:
            socket.send_fds(self._socket, [kind + body], files)
            found = self._socket.recv(8)
        if not found:
            self.close()
            raise ChildProcessError("the zygote of the workers that judge answers has ended")
        return found


class Worker:
    """The owner's side of a worker."""

    def __init__(self, zygote: Zygote, pid: int, own: socket.socket) -> None:
        self.zygote, self.pid, self.socket = zygote, pid, own
        self.rows: deque[int] = deque()
        """The rows that it has got, the present one first."""
        self.uses = 0
        self.spent = False
        """Whether its last judgement may have changed it."""
        self.garbled = False
        """Whether it has sent what no worker sends."""
        self.gaps: list[str] = []
        """Limits that the kernel does not enforce in it."""
        self._ran_code = self._told = False
        self._frames = Frames(_LONGEST)
        self._used: float | None = None
        self._since = self._looked = self._last = self._slept = 0.0
        self._begin()

    def give(self, rows: Sequence[int], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Let it judge rows."""
        self.rows.extend(rows)
        self.uses += len(rows)
        self._begin()
        send(self.socket, DONE, pickle.dumps(arguments))

    def results(self) -> list[tuple[int, Any]] | None:
        """Return the rows that are judged now; None if the process has ended, or speaks nonsense."""
        found: list[tuple[int, Any]] = []
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return None
        try:
            for kind, body in self._frames.feed(data):
                self._ran_code |= kind == RAN_CODE
                if kind == GAPS and not self._told:
                    self.gaps = [str(gap) for gap in decode(body)]
                self._told = True
                if kind in (DONE, RAISED) and self.rows:
                    value = decode(body)
                    found.append((self.rows.popleft(), Failed(str(value)) if kind == RAISED else value))
                    self._begin()
                    if self._ran_code:  # what follows may be forged
                        self.spent = True
                        break
        except ValueError:
            self.garbled = True
            return None
        return found if data else None

    def over(self, limits: JudgeLimits) -> str:
        """Return the limit that the present row exceeds, or an empty text. Called again and again."""
        now = time.monotonic()
        try:
            used, sleeps = activity(self.pid)
        except (OSError, IndexError):
            return ""  # it has ended
        if self._used is None:
            self._used = self._last = used
        if sleeps and used == self._last:
            self._slept += min(now - self._looked, 2 * TICK_S)
        self._last, self._looked = used, now
        if used - self._used > limits.seconds:
            return f"it took more than {limits.seconds:g} s of processor time"
        return f"it waited for more than {limits.seconds:g} s" if self._slept > limits.seconds else ""

    @property
    def slow(self) -> bool:
        """Whether its present row takes long."""
        return time.monotonic() - self._since > _SLOW_S

    def end(self) -> int | None:
        """Kill it, and return its status as of `os.waitpid`. None: the zygote is gone, and all workers with it."""
        self.socket.close()
        try:
            return self.zygote.reap(self.pid)
        except OSError:
            return None

    def drop(self) -> None:
        """Kill it."""
        self.socket.close()
        with suppress(OSError):
            self.zygote.drop(self.pid)

    def _begin(self) -> None:
        self._since = self._looked = time.monotonic()
        self._used, self._last, self._slept = None, 0.0, 0.0
