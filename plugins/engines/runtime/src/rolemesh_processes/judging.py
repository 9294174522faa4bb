"""Judges texts of strangers in worker processes: one that hangs, dies, writes or takes too much costs itself only.

A zygote, which never runs a judgement, forks the workers. So they begin equal, and end with it; it ends with its owner.
"""

from __future__ import annotations

import logging
import os
import re
import selectors
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from rolemesh_processes.forking import how_ended
from rolemesh_processes.judging_code import NO_NAMES
from rolemesh_processes.judging_owner import TICK_S, Failed, JudgeLimits, Worker, Zygote
from rolemesh_processes.judging_worker import Judge, Work, own_code

__all__ = ["Failed", "JudgeLimits", "Judges", "own_code"]

_LOG: Final = logging.getLogger(__name__)
_CHUNK: Final = 32
"""Number of rows that a worker gets at once."""
_TRIES: Final = 3
"""Number of times that the worker of one row may be killed from outside."""
_USES: Final = 10_000
"""Number of judgements after which a worker is replaced."""
_DEFAULT: Final = JudgeLimits()


class Judges:
    """Calls one function in worker processes. It may be used by several threads at once."""

    def __init__(
        self,
        judge: Judge,
        limits: JudgeLimits = _DEFAULT,
        *,
        sealed: bool = True,
        prepare: Callable[[], None] | None = None,
        names: re.Pattern[str] = NO_NAMES,
    ) -> None:
        """`judge` returns what JSON can express. Workers get it, and all that it refers to, from this process as it is
        at the first judgement, or when `start` is called.

        `sealed`: workers can only compute and read files, and have no environment variables. Otherwise they also have a
        network, programs, variables, and a temporary folder, which is the only one that they can write to. Without
        Landlock and seccomp the kernel enforces less, as the log then says; see `confinement`.

        `prepare` loads what each worker needs, such as modules, before they are forked. It runs no text of a stranger.

        `names`: names that the code of a text may read and call in `judge`, since this changes nothing there.
        """
        self._work, self._limits = Work(judge, int(limits.memory_mb * 1e6), sealed, prepare, names), limits
        self._zygote: Zygote | None = None
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._warned = False

    def start(self) -> None:
        """Start a worker, if there is none."""
        worker = self._take()
        self._give_back(worker)

    def judge(self, rows: Sequence[tuple[Any, ...]], *, clean: bool = False) -> list[Any]:
        """Return what `judge` returns for the arguments in each row, or `Failed`.

        A worker whose judgement has run code that is not of a module judges no other row, because it may have been
        changed: one that called `eval`, for example. Code that only computes, or ends at a name that nothing has, is
        no such code; see `judging_code`. Nor does a sealed worker that has used half of its memory.

        `clean`: a judgement that has run such code is `Failed`, because one text of its row may have judged the others.
        """
        with selectors.DefaultSelector() as selector:
            return _Round(self, selector, rows, self._limits, clean).results()

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            self._idle, zygote, self._zygote = [], self._zygote, None
        if zygote is not None:
            zygote.close()

    def _take(self) -> Worker:
        with self._lock:
            if self._zygote is None or not self._zygote.lives:
                self._idle, self._zygote = [], Zygote(self._work)
            if self._idle:
                return self._idle.pop()
            try:
                return self._zygote.fork()
            except OSError:  # it was killed
                self._idle, self._zygote = [], Zygote(self._work)
                return self._zygote.fork()

    def _warn(self, gaps: Sequence[str]) -> None:
        if gaps and not self._warned:
            self._warned = True
            _LOG.warning("Texts of a model are judged with fewer limits than usual: %s", "; ".join(gaps))

    def _give_back(self, worker: Worker) -> None:
        with self._lock:
            if worker.zygote is self._zygote and worker.uses < _USES and len(self._idle) < self._limits.workers:
                self._idle.append(worker)
                return
        worker.end()


class _Round:
    """The judgement of some rows."""

    def __init__(
        self,
        judges: Judges,
        selector: selectors.BaseSelector,
        rows: Sequence[tuple[Any, ...]],
        limits: JudgeLimits,
        clean: bool,
    ) -> None:
        self._judges, self._selector, self._limits = judges, selector, limits
        self._rows, self._clean = rows, clean
        self._todo = deque(range(len(rows)))
        self._results: list[Any] = [None] * len(rows)
        self._most = min(limits.workers, len(os.sched_getaffinity(0)))
        self._wanted = 1
        self._killed: Counter[int] = Counter()
        """How often the worker of a row was killed from outside. The row is tried again, alone."""

    def results(self) -> list[Any]:
        """Judge all rows, and return their results in order."""
        working: set[Worker] = set()
        try:
            while self._todo or working:
                while self._todo and len(working) < self._wanted:
                    working.add(self._started())
                ready = {key.data for key, _ in self._selector.select(TICK_S)}
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

    def _started(self, worker: Worker | None = None) -> Worker:
        fresh = worker is None
        worker = worker or self._judges._take()
        alone = self._todo[0] in self._killed
        rows = [self._todo.popleft() for _ in range(1 if alone else min(_CHUNK, len(self._todo)))]
        if fresh:
            self._selector.register(worker.socket, selectors.EVENT_READ, worker)
        with suppress(OSError):  # it has ended, as its socket says next
            worker.give(rows, [self._rows[row] for row in rows])
        return worker

    def _moved_on(self, worker: Worker, ready: bool) -> bool:
        """Take a worker's results, or end it at a limit. Return whether it works no more."""
        if ready:
            found = worker.results()
            self._judges._warn(worker.gaps)
            if found is None:
                self._ended(worker, "")
                return True
            for row, value in found:
                self._results[row] = value
            if worker.spent and self._clean:
                self._results[found[-1][0]] = Failed("it has run code that is not of a module")
        elif worker.slow and (over := worker.over(self._limits)):
            self._ended(worker, over)
            return True
        if worker.spent:
            self._wanted = min(self._wanted + 1, self._most)
            self._forget(worker)
            worker.drop()
            return True
        if worker.rows:
            return False
        if self._todo and worker.uses < _USES:
            self._started(worker)
            return False
        self._selector.unregister(worker.socket)
        self._judges._give_back(worker)
        return True

    def _ended(self, worker: Worker, over: str) -> None:
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

    def _dismiss(self, worker: Worker) -> int | None:
        """End a worker, and put its rows back. Return its status; None: it ended with its zygote."""
        self._forget(worker)
        return worker.end()

    def _forget(self, worker: Worker) -> None:
        self._selector.unregister(worker.socket)
        self._todo.extendleft(reversed(worker.rows))
