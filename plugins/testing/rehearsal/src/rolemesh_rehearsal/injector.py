"""Inject the failures of a rehearsal into a running job, through its master, from a thread beside the driver."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rolemesh.api.observer import JobStatus
from rolemesh.errors import EXIT_FAILED, RolemeshError
from rolemesh.runs.run import EVENTS_FILE
from rolemesh_durable.api.jobs import (
    ANSWER_S,
    LASTING_S,
    ControlClient,
    InjectFault,
    LivingRun,
    MasterGoneError,
    RefusedError,
    Release,
)
from rolemesh_rehearsal.schedule import (
    AGAIN_S,
    Fault,
    Moment,
    children_killed,
    has_hit,
    is_told,
    moments,
    next_fault,
    progress,
)
from rolemesh_rehearsal.spec import Rehearsal

__all__ = ["Injector", "RehearsalError"]

log = logging.getLogger("rolemesh_rehearsal")

LOOK_S = 0.02
LEAD_S = 0.2
LEAD = 8
"""Seconds, and number of steps, that ranks may run past the moment of a failure before it happens; then they wait."""
FIND_S = 60.0
"""Maximum seconds that a failure waits for a suitable target."""
HIT_S, STOP_HIT_S, LOST_S = 30.0, 150.0, 5.0
"""Maximum seconds until a failure shows. A stopped process shows after `hang.after_s`. If a
master has died since, the failure may be lost with it; then it is injected again soon."""
HELD_S = 2.0
"""Seconds for which ranks wait for their next step until they get it, if one of them is to start a process."""
ENDLESS_PER_KILL = 8
"""In a job without an end, number of steps per failure."""
TRIES = 3
LASTING = ("full", "stall")
OVER = ("stopping", "done", "failed", "interrupted")


class RehearsalError(RolemeshError):
    """A rehearsal has shown less than it was to show."""

    exit_code = EXIT_FAILED


class _Pending(NamedTuple):
    """A failure that was injected at `since`, when the job's status was `before`, and has not shown so far."""

    fault: Fault
    before: JobStatus
    moment: Moment
    since: float
    killed: int = 0
    """The number of the target's children that had been killed before."""

    def limit_s(self, now: JobStatus) -> float:
        """Return how many seconds the injector waits for it."""
        if self.fault.kind == "stop":
            return STOP_HIT_S
        return LOST_S if now.epoch > self.before.epoch else HIT_S


class Injector:
    """Call `start` when the master is up; `stop` returns the injected failures; `check` compares them with the request.

    The master grants no step that the injector has not released. So the failures come in time, however fast the job is,
    and its last step comes after all of them.
    """

    def __init__(self, rehearsal: Rehearsal, run_dir: Path, nodes: int | None = None) -> None:
        """`nodes` is the number of nodes that the job can use. None: it uses the nodes of its agents, and loses
        none."""
        self.rehearsal, self._nodes = rehearsal, nodes
        self.injected: list[Fault] = []
        """The failures that took effect."""
        self._run_dir = run_dir
        self._master = ControlClient(run_dir, ANSWER_S)
        self._over = threading.Event()
        self._released = -1
        self._pending: list[_Pending] = []
        self._missed: list[Moment] = []
        self._ending = False
        self._held = 0.0
        """The last time at which no rank waited for a step in which a child was to be killed."""
        self._rng = random.Random(f"faults {rehearsal.seed}")
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)

    def start(self) -> None:
        """Start waiting for the first moment."""
        self._thread.start()

    def stop(self) -> list[Fault]:
        """The job has ended: return the failures that took effect."""
        self._over.set()
        self._thread.join()
        self._master.close()
        events = self._events()
        self.injected += [each.fault for each in self._pending if is_told(each.fault, events)]
        self._pending = []
        return self.injected

    def check(self) -> None:
        """Raise `RehearsalError` if fewer failures took effect than requested."""
        missing = self.rehearsal.kills - len(self.injected)
        if missing > 0:
            raise RehearsalError(
                f"only {len(self.injected)} of the {self.rehearsal.kills} failures of the rehearsal have hit something",
                where="--chaos",
                remedy="look into the account above for what it could not hit: targets must be alive, unfinished, and "
                "there at all; ask for fewer kills, or for other targets",
            )

    def _run(self) -> None:
        try:
            self._inject_all()
        except RolemeshError as error:
            log.warning("the rehearsal ends early: %s", error)
        finally:
            # Whatever has become of the failures, the job goes on to its end; a new master has to be told so again.
            self._released = 1 << 62
            while not self._over.is_set():
                self._status()
                self._over.wait(LEAD_S)

    def _inject_all(self) -> None:
        begun = self._until(lambda status: status.state == "running")
        if begun is None:
            return
        since, first = time.monotonic(), progress(begun)
        for moment in moments(self.rehearsal, begun.steps or ENDLESS_PER_KILL * self.rehearsal.kills):
            pace = (time.monotonic() - since) / max(1, progress(begun) - first)
            if not moment.again:
                begun = self._at(moment.step, pace, begun)
            if begun is None or self._over.wait(moment.share * (AGAIN_S if moment.again else pace)):
                return
            self._inject(moment)
            early = [each for each in self._missed if each.target.startswith("child")]
            for again in early:  # at the end no rank starts a process any more
                self._missed.remove(again)
                self._inject(again)
        self._ending = True
        for _ in range(TRIES):
            self._await_hits()
            missed, self._missed = self._missed, []
            for moment in missed:
                self._inject(moment)
            if not missed:
                return

    def _at(self, step: int, pace: float, status: JobStatus) -> JobStatus | None:
        """Return the status when a rank has passed `step`, for which it is released; None if the job ended first."""
        # The last step is for when everything has been injected.
        last = status.steps - 2 if status.steps is not None else 1 << 60
        lead = 1 if "child" in self.rehearsal.kinds else LEAD
        self._released = max(self._released, min(step + lead + int(LEAD_S / max(pace, 1e-3)), last))
        return self._until(lambda status: status.state == "running" and progress(status) >= min(step + 1, last))

    def _until(self, ready: Callable[[JobStatus], bool], limit_s: float = float("inf")) -> JobStatus | None:
        """Return the status when it is `ready`; None if the job ended first, or after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while not self._over.is_set() and time.monotonic() < deadline:
            status = self._status()
            if status is not None and status.state in OVER:
                return None
            if status is not None and ready(status):
                return status
            self._over.wait(LOOK_S)
        return None

    def _inject(self, moment: Moment) -> None:
        """Inject one failure. If nothing can fail now, try again for a while."""
        deadline = time.monotonic() + FIND_S + (STOP_HIT_S if self._stopped() else 0.0)
        while not self._over.is_set() and time.monotonic() < deadline:
            status, fault = self._status(), None
            if status is not None:
                self._settle(status)
                if (left := self._nodes_left) is not None and left < 2 and moment.target.startswith("node"):
                    return  # nodes do not come back
                pending = [each.fault for each in self._pending]
                fault = next_fault(self._rng, moment.target, status, self._released, pending, left)
            if status is not None and fault is not None:
                killed = self._killed(fault)
                with suppress(MasterGoneError):  # the master itself was meant, or it has died of the failure before
                    try:
                        self._master.ask(InjectFault(*fault))
                    except RefusedError:
                        fault = None  # it has ended since, or is being started again
                if fault is not None:
                    if fault.kind == "stall":
                        threading.Thread(target=self._stall_store, name="stall", daemon=True).start()
                    self._pending.append(_Pending(fault, status, moment, time.monotonic(), killed))
                    return
            self._over.wait(LOOK_S)

    def _stall_store(self) -> None:
        with suppress(RolemeshError), LivingRun(self._run_dir).store() as log:
            log.store.block(LASTING_S)

    def _await_hits(self) -> None:
        """Wait until all failures have taken effect, or the time limit."""
        lasting = any(fault.kind in LASTING for fault in (*self.injected, *(each.fault for each in self._pending)))

        def all_settled(status: JobStatus) -> bool:
            self._settle(status)
            return not self._pending

        self._until(all_settled, STOP_HIT_S + LOST_S)
        self._missed += [each.moment for each in self._pending]
        self._pending = []
        self._over.wait(LASTING_S if lasting else 0.0)

    def _settle(self, status: JobStatus) -> None:
        """Count the failures that took effect. Give up those whose time limit has passed."""
        now, waiting = time.monotonic(), []
        for each in self._pending:
            if has_hit(each.fault, each.before, status) or self._killed(each.fault) > each.killed:
                self.injected.append(each.fault)
            elif now - each.since > each.limit_s(status):
                self._missed.append(each.moment)
            else:
                waiting.append(each)
        self._pending = waiting
        self._release_for_children(status, now)

    def _release_for_children(self, status: JobStatus, now: float) -> None:
        """Release another step if ranks have waited for it while a child is to be killed: they start no process then.

        The last step is for the end, when only children are left to be killed.
        """
        kinds = {each.fault.kind for each in self._pending}
        wanted, kept = "child" in kinds, 1 if self._ending and kinds == {"child"} else 2
        if not wanted or progress(status) < self._released:
            self._held = now
        elif now > self._held + HELD_S and (status.steps is None or self._released < status.steps - kept):
            self._released, self._held = self._released + 1, now

    def _killed(self, fault: Fault) -> int:
        """Return how many children of the target of a fault `child` have been killed; 0 for another fault."""
        return children_killed(self._events())[fault.target] if fault.kind == "child" else 0

    def _events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with suppress(OSError, msgspec.DecodeError):  # the last line, of a master that has died, may not be whole
            for line in (self._run_dir / EVENTS_FILE).read_bytes().splitlines():
                found.append(msgspec.json.decode(line))
        return found

    @property
    def _nodes_left(self) -> int | None:
        if self._nodes is None:
            return None
        faults = *self.injected, *(each.fault for each in self._pending)
        return self._nodes - len({fault.target for fault in faults if fault.target.startswith("node:")})

    def _stopped(self) -> bool:
        return any(each.fault.kind == "stop" for each in self._pending)

    def _status(self) -> JobStatus | None:
        try:
            return self._master.ask(Release(self._released)).status
        except (MasterGoneError, RefusedError):
            return None
