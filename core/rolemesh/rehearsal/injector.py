"""Injects the failures of a rehearsal into a running job, through its master, from a thread beside the driver."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

from rolemesh.control import ControlClient, MasterGoneError
from rolemesh.follow import ANSWER_S
from rolemesh.observer import JobStatus
from rolemesh.rehearsal.schedule import AGAIN_S, Fault, moments, next_fault
from rolemesh.rehearsal.spec import Rehearsal, Target

__all__ = ["Injector"]

LOOK_S = 0.02


class Injector:
    """`start` it when the master is up; `stop` returns what was injected."""

    def __init__(self, rehearsal: Rehearsal, run_dir: Path) -> None:
        self.rehearsal = rehearsal
        self.injected: list[Fault] = []
        self._master = ControlClient(run_dir, ANSWER_S)
        self._over = threading.Event()
        self._rng = random.Random(f"faults {rehearsal.seed}")
        self._thread = threading.Thread(target=self._inject_all, name="chaos", daemon=True)

    def start(self) -> None:
        """Begin to wait for the first moment."""
        self._thread.start()

    def stop(self) -> list[Fault]:
        """The job has ended."""
        self._over.set()
        self._thread.join()
        self._master.close()
        return self.injected

    def _inject_all(self) -> None:
        begun = self._committed(-1)
        if begun is None:
            return
        since, first = time.monotonic(), begun.committed
        for moment in moments(self.rehearsal, begun.steps):
            status = begun if moment.again else self._committed(moment.step)
            if status is None:
                return
            pace = (time.monotonic() - since) / max(1, status.committed - first)
            if self._over.wait(moment.share * (AGAIN_S if moment.again else pace)):
                return
            self._inject(moment.target)

    def _committed(self, step: int) -> JobStatus | None:
        """The status of the job once it runs and has committed `step`; None when it has ended before."""
        while not self._over.is_set():
            status = self._status()
            if status is not None and status.state in ("stopping", "done", "failed", "interrupted"):
                return None
            if status is not None and status.state == "running" and status.committed >= step:
                return status
            self._over.wait(LOOK_S)
        return None

    def _inject(self, target: Target) -> None:
        """One failure; tried until there is something that can fail, for a while."""
        deadline = time.monotonic() + 10.0
        while not self._over.is_set() and time.monotonic() < deadline:
            status = self._status()
            fault = next_fault(self._rng, target, status) if status is not None else None
            if fault is not None:
                self.injected.append(fault)
                with suppress(MasterGoneError):  # the master itself was meant, or it has died of the failure before
                    self._master.inject(*fault)
                return
            self._over.wait(LOOK_S)

    def _status(self) -> JobStatus | None:
        try:
            return self._master.status()
        except MasterGoneError:
            return None
