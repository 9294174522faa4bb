"""Judges texts of strangers in worker processes: one that hangs, dies, writes or takes too much costs itself only.

A zygote, which never runs a judgement, forks the workers. So they begin equal, and end with it; it ends with its owner.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from rolemesh_processes.facts import activity
from rolemesh_processes.forking import Frames, fork_serving, how_ended, send
from rolemesh_processes.judging_worker import (
    DONE,
    FORK,
    RAISED,
    RAN_CODE,
    REAP,
    Judge,
    Work,
    decode,
    own_code,
    serve_zygote,
)

__all__ = ["Failed", "JudgeLimits", "Judges", "own_code"]

_CHUNK: Final = 32
"""Number of rows that a worker gets at once."""
_TRIES: Final = 3
"""Number of times that the worker of one row may be killed from outside."""
_USES: Final = 10_000
"""Number of judgements after which a worker is replaced."""
_LONGEST: Final = 1 << 20
"""Largest result of a judgement in bytes."""
_TICK_S, _SLOW_S = 0.05, 0.2
"""Period of the checks, and time that one judgement may take before another worker helps with the others."""


class JudgeLimits(NamedTuple):
    """Limits of one judgement. `seconds`: of processor time, and of sleep. The time for which a ready process waits for
    a processor does not count, so that a loaded machine judges as an idle one. `memory_mb`: 10^6 bytes beyond those of
    the process at its start."""

    seconds: float = 5.0
    memory_mb: float = 1000.0
    workers: int = 4
    """Maximum number of workers of one call, as far as there are processors. It begins with one, and another one helps
    when a judgement is slow."""


_DEFAULT: Final = JudgeLimits()


class Failed(NamedTuple):
    """There is no judgement. The reason is the same if it is tried again."""

    reason: str


class Judges:
    """Calls one function in worker processes. It may be used by several threads at once."""

    def __init__(self, judge: Judge, limits: JudgeLimits = _DEFAULT, *, sealed: bool = True) -> None:
        """`judge` returns what JSON can express. Workers get it, and all that it refers to, from this process as it is
        at the first judgement, or when `start` is called.

        `sealed`: workers can only compute and read files, and have no environment variables. Otherwise they also have a
        network, programs, variables, and a temporary folder, which is the only one that they can write to. Without
        Landlock and seccomp the kernel enforces less; see `confinement`.
        """
        self._work, self._limits = Work(judge, int(limits.memory_mb * 1e6), sealed), limits
        self._zygote: _Zygote | None = None
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start a worker, if there is none."""
        worker = self._take()
        self._give_back(worker)

    def judge(self, rows: Sequence[tuple[Any, ...]], harmless: Sequence[bool] = ()) -> list[Any]:
        """Return what `judge` returns for the arguments in each row, or `Failed`.

        A worker whose judgement has run code that is not of a module judges no other row, because it may have been
        changed: one that called `eval`, for example. `harmless`: rows that cannot have done that, as they name nothing.
        """
        with selectors.DefaultSelector() as selector:
            return _Round(self, selector, rows, harmless or [False] * len(rows), self._limits).results()

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            self._idle, zygote, self._zygote = [], self._zygote, None
        if zygote is not None:
            zygote.close()

    def _take(self) -> _Worker:
        with self._lock:
            if self._zygote is None or not self._zygote.lives:
                self._idle, self._zygote = [], _Zygote(self._work)
            if self._idle:
                return self._idle.pop()
            try:
                return self._zygote.fork()
            except OSError:  # it was killed
                self._idle, self._zygote = [], _Zygote(self._work)
                return self._zygote.fork()

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            if worker.zygote is self._zygote and worker.uses < _USES and len(self._idle) < self._limits.workers:
                self._idle.append(worker)
                return
        worker.end()


class _Zygote:
    """The owner's side of the zygote."""

    def __init__(self, work: Work) -> None:
        self._owner = owner = os.getpid()
        self._asking = threading.Lock()
        self.pid, self._socket = fork_serving(lambda own: serve_zygote(own, owner, work), quiet=True, dies=False)

    @property
    def lives(self) -> bool:
        """Whether it can fork for this process."""
        return self._socket.fileno() >= 0 and os.getpid() == self._owner

    def fork(self) -> _Worker:
        """Return a new worker."""
        ours, theirs = socket.socketpair()
        with theirs:
            pid = int.from_bytes(self._ask(FORK, b"", theirs.fileno()), "little")
        return _Worker(self, pid, ours)

    def reap(self, pid: int) -> int:
        """Kill a worker with what it has started, and return its status as of `os.waitpid`."""
        return int.from_bytes(self._ask(REAP, pid.to_bytes(8, "little")), "little")

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


class _Worker:
    """The owner's side of a worker."""

    def __init__(self, zygote: _Zygote, pid: int, own: socket.socket) -> None:
        self.zygote, self.pid, self.socket = zygote, pid, own
        self.rows: deque[int] = deque()
        """The rows that it has got, the present one first."""
        self.uses = 0
        self.spent = False
        """Whether its last judgement may have changed it."""
        self.garbled = False
        """Whether it has sent what no worker sends."""
        self._ran_code = False
        self._frames = Frames(_LONGEST)
        self._used: float | None = None
        self._since = self._looked = self._last = self._slept = 0.0
        self._begin()

    def give(self, rows: Sequence[int], arguments: Sequence[tuple[bool, tuple[Any, ...]]]) -> None:
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
            self._slept += min(now - self._looked, 2 * _TICK_S)
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

    def _begin(self) -> None:
        self._since = self._looked = time.monotonic()
        self._used, self._last, self._slept = None, 0.0, 0.0


class _Round:
    """The judgement of some rows."""

    def __init__(
        self,
        judges: Judges,
        selector: selectors.BaseSelector,
        rows: Sequence[tuple[Any, ...]],
        harmless: Sequence[bool],
        limits: JudgeLimits,
    ) -> None:
        self._judges, self._selector, self._limits = judges, selector, limits
        self._rows, self._harmless = rows, harmless
        self._todo = deque(range(len(rows)))
        self._results: list[Any] = [None] * len(rows)
        self._most = min(limits.workers, len(os.sched_getaffinity(0)))
        self._wanted = 1
        self._killed: Counter[int] = Counter()
        """How often the worker of a row was killed from outside. The row is tried again, alone."""

    def results(self) -> list[Any]:
        """Judge all rows, and return their results in order."""
        working: set[_Worker] = set()
        try:
            while self._todo or working:
                while self._todo and len(working) < self._wanted:
                    working.add(self._started())
                ready = {key.data for key, _ in self._selector.select(_TICK_S)}
                for worker in list(working):
                    if self._moved_on(worker, worker in ready):
                        working.discard(worker)
                if self._todo and self._wanted < self._most and all(worker.slow for worker in working):
                    self._wanted += 1
        except BaseException:
            for worker in working:
                worker.end()
            raise
        return self._results

    def _started(self, worker: _Worker | None = None) -> _Worker:
        fresh = worker is None
        worker = worker or self._judges._take()
        alone = self._todo[0] in self._killed
        rows = [self._todo.popleft() for _ in range(1 if alone else min(_CHUNK, len(self._todo)))]
        if fresh:
            self._selector.register(worker.socket, selectors.EVENT_READ, worker)
        with suppress(OSError):  # it has ended, as its socket says next
            worker.give(rows, [(self._harmless[row], self._rows[row]) for row in rows])
        return worker

    def _moved_on(self, worker: _Worker, ready: bool) -> bool:
        """Take a worker's results, or end it at a limit. Return whether it works no more."""
        if ready:
            found = worker.results()
            if found is None:
                self._ended(worker, "")
                return True
            for row, value in found:
                self._results[row] = value
        elif worker.slow and (over := worker.over(self._limits)):
            self._ended(worker, over)
            return True
        if worker.spent:
            self._dismiss(worker)
            return True
        if worker.rows:
            return False
        if self._todo and worker.uses < _USES:
            self._started(worker)
            return False
        self._selector.unregister(worker.socket)
        self._judges._give_back(worker)
        return True

    def _ended(self, worker: _Worker, over: str) -> None:
        """Give the row of a worker that has ended, or is over a limit, its failure."""
        row = worker.rows.popleft() if worker.rows else None
        status = self._dismiss(worker)
        if row is None:
            return
        killed = status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
        if killed and not (over or worker.garbled):
            self._killed[row] += 1
            if self._killed[row] < (_TRIES if status is not None else 2 * _TRIES):
                self._todo.appendleft(row)
                return
            over = "its process was killed several times, perhaps because the machine had no memory left"
        if worker.garbled:
            over = "its result cannot be read"
        self._results[row] = Failed(over or f"it has ended its process with {how_ended(status or 0)}")

    def _dismiss(self, worker: _Worker) -> int | None:
        """End a worker, and put its rows back. Return its status; None: it ended with its zygote."""
        self._selector.unregister(worker.socket)
        self._todo.extendleft(reversed(worker.rows))
        return worker.end()
