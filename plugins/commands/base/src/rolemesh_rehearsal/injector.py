"""Inject the failures of a rehearsal into a running job, through its master, from a thread beside the driver."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rolemesh.api.observer import JobStatus
from rolemesh.api.rank_ref import RankRef
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
    KILLING,
    Fault,
    Moment,
    Passing,
    children_killed,
    furthest,
    has_hit,
    is_lost,
    is_recovering,
    is_told,
    may_appear,
    moments,
    next_fault,
    order_of,
    orders,
    progress,
    why_none,
)
from rolemesh_rehearsal.spec import Rehearsal, kind_of

__all__ = ["Injector", "RehearsalError"]

log = logging.getLogger("rolemesh_rehearsal")

LOOK_S = 0.02
LEAD_S = 0.2
LEAD = 8
"""Seconds, and number of steps, that ranks may run past the moment of a failure before it happens; then they wait."""
SLOW_S = 1.0
"""Ranks whose steps take this many seconds run one step past the moment, so that failures meet ranks at work."""
FIND_S, ABSENT_S = 60.0, 5.0
"""Maximum seconds that a failure waits for a suitable target: while something restarts, and while nothing does."""
HIT_S, STOP_HIT_S, LOST_S, RAISE_S = 30.0, 150.0, 5.0, 5.0
"""Maximum seconds until a failure shows, not counting those in which ranks restart. A stopped process shows after
`hang.after_s`. If a master has died since, the failure may be lost with it; then it is injected again soon. A rank
that computes nothing now may call its next operator, which is to raise, much later."""
NO_CHILD = "no rank of it had a process of its own that could be killed, up to the end of the job"
NOT_SEEN = "the failure was injected, and no effect has shown"
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
    deaths: int = 0
    """The number of the target's children that had been killed before."""
    orders: int = 0
    """The number of failures of this kind and target that a master had carried out before."""

    def limit_s(self, now: JobStatus) -> float:
        """Return how many seconds the injector waits for it."""
        if self.fault.kind == "stop":
            return STOP_HIT_S
        if now.epoch > self.before.epoch:
            return LOST_S
        idle = any(str(rank.ref) == self.fault.target and rank.phase != "computing" for rank in now.ranks)
        return RAISE_S if idle and self.fault.kind == "raise" else HIT_S


class Injector:
    """Call `start` when the master is up; `stop` returns the injected failures; `check` compares them with the request.

    The master grants no step that the injector has not released. So the failures come in time, however fast the job is,
    and its last step comes after all of them. Only failures of the kind `child` hold nothing back: each waits beside
    the others until a rank has a child, at most to the job's end.
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
        self._furthest: dict[RankRef, int] = {}
        self._passing = Passing()
        self._pending: list[_Pending] = []
        self._missed: list[Moment] = []
        self._children: list[Moment] = []
        """Failures of the kind `child` of which no agent knows."""
        self._dropped: list[tuple[str, str]] = []
        """The targets that were not hit, and why."""
        self._rngs: dict[int, random.Random] = {}
        """A generator for each moment: how often one is drawn again changes no other."""
        self._told = _Told(run_dir / EVENTS_FILE)
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)

    def start(self) -> None:
        """Start waiting for the first moment."""
        self._thread.start()

    def stop(self) -> list[Fault]:
        """The job has ended: return the failures that took effect."""
        self._over.set()
        self._thread.join()
        self._master.close()
        events: list[dict[str, Any]] = []
        with suppress(OSError):
            events = _events((self._run_dir / EVENTS_FILE).read_bytes())
        for each in self._pending:
            if is_told(each.fault, events):
                self.injected.append(each.fault)
            else:
                self._dropped.append((each.moment.target, NO_CHILD if each.fault.kind == "child" else NOT_SEEN))
        self._dropped += [(moment.target, NO_CHILD) for moment in self._children]
        self._dropped += [(moment.target, NOT_SEEN) for moment in self._missed]
        self._pending, self._children, self._missed = [], [], []
        return self.injected

    def not_hit(self) -> list[str]:
        """Return a line for each target that was not hit: how often, and why."""
        return [f"{target}, {times} ×: {why}" for (target, why), times in Counter(self._dropped).items()]

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
                self._over.wait(LOOK_S if self._children or self._pending else LEAD_S)

    def _inject_all(self) -> None:
        begun = self._until(lambda status: status.state == "running")
        if begun is None:
            return
        for moment in moments(self.rehearsal, begun.steps or ENDLESS_PER_KILL * self.rehearsal.kills):
            if not moment.again and (begun := self._at(moment.step, begun)) is None:
                return
            if self._over.wait(self._left_s(moment)):
                return
            self._inject(moment)
        for _ in range(TRIES):
            self._await_hits()
            missed, self._missed = self._missed, []
            for moment in missed:
                self._inject(moment)
            if not missed:
                return

    def _left_s(self, moment: Moment) -> float:
        """Return the seconds until a moment whose step all ranks have passed."""
        if moment.again:
            return moment.share * AGAIN_S
        pace = self._passing.pace
        due = self._passing.at(moment.step + 1) + moment.share * pace if pace < inf else 0.0
        return max(0.0, due - time.monotonic())

    def _at(self, step: int, status: JobStatus) -> JobStatus | None:
        """Return the status when all ranks have passed `step`, for which they are released; None if the job ended
        first."""
        # The last step is for when everything has been injected.
        last, pace = status.steps - 2 if status.steps is not None else 1 << 60, self._passing.pace
        lead = 1 if "child" in self.rehearsal.kinds or pace >= SLOW_S else LEAD
        self._released = max(self._released, min(step + lead + int(LEAD_S / max(pace, 1e-3)), last))
        return self._until(lambda status: status.state == "running" and self._progress(status) >= min(step + 1, last))

    def _progress(self, status: JobStatus) -> int:
        return progress(self._furthest, status)

    def _until(self, ready: Callable[[JobStatus], bool], limit_s: float = inf) -> JobStatus | None:
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
        """Inject one failure. If nothing can fail now, try again as long as something restarts."""
        if kind_of(moment.target)[0] == "child":
            self._children.append(moment)
            return
        now = time.monotonic()
        deadline, absent = now + FIND_S + (STOP_HIT_S if self._stopped() else 0.0), now + ABSENT_S
        while not self._over.is_set() and (now := time.monotonic()) < deadline:
            status = self._status()
            if status is not None and self._try(moment, status):
                return
            if status is None or may_appear(status, self._faults):
                absent = now + ABSENT_S
            elif now > absent or moment.target in {target for target, _ in self._dropped}:
                self._dropped.append((moment.target, why_none(moment.target, status, self._nodes_left)))
                return
            self._over.wait(LOOK_S)
        self._missed.append(moment)

    def _try(self, moment: Moment, status: JobStatus) -> bool:
        """Inject a failure if something suits its target now. Return whether it was injected."""
        rng = self._rngs.setdefault(moment.number, random.Random(f"fault {self.rehearsal.seed}:{moment.number}"))
        fault = next_fault(rng, moment.target, status, self._released, self._faults, self._nodes_left)
        return fault is not None and self._ask(fault, moment, status)

    def _ask(self, fault: Fault, moment: Moment, status: JobStatus) -> bool:
        """Ask the master for a failure. Return False if its target has ended since, or is being started again."""
        deaths, orders = self._told.deaths(fault), self._told.orders(fault)
        with suppress(MasterGoneError):  # the master itself was meant, or it has died of the failure before
            try:
                self._master.ask(InjectFault(*fault))
            except RefusedError:
                return False
        if fault.kind == "stall":
            threading.Thread(target=self._stall_store, name="stall", daemon=True).start()
        self._pending.append(_Pending(fault, status, moment, time.monotonic(), deaths, orders))
        return True

    def _stall_store(self) -> None:
        with suppress(RolemeshError), LivingRun(self._run_dir).store() as log:
            log.store.block(LASTING_S)

    def _await_hits(self) -> None:
        """Wait until all failures but those of children have taken effect, or the time limit."""
        lasting = any(fault.kind in LASTING for fault in (*self.injected, *self._faults))
        self._until(lambda _: all(fault.kind == "child" for fault in self._faults), STOP_HIT_S + LOST_S)
        self._missed += [each.moment for each in self._pending if each.fault.kind != "child"]
        self._pending = [each for each in self._pending if each.fault.kind == "child"]
        self._over.wait(LASTING_S if lasting else 0.0)

    def _settle(self, status: JobStatus) -> None:
        """Count the failures that took effect, and pass on those that wait for a child. If one has not shown in time,
        kill the rank that did not raise, and note any other for the end."""
        now, before, self._pending = time.monotonic(), self._pending, []
        self._furthest = furthest(self._furthest, status)
        self._passing.look(self._progress(status), now)
        if is_recovering(status):  # a failure of what waits for its restart shows after the restart
            before = [each._replace(since=now) for each in before]
        for each in before:
            if self._shows(each, status):
                self.injected.append(each.fault)
            elif is_lost(each.fault, each.before, status):
                self._children.append(each.moment)
            elif each.fault.kind == "child" or now - each.since <= each.limit_s(status):
                self._pending.append(each)
            elif each.fault.kind != "raise" or not self._ask(each.fault._replace(kind="kill"), each.moment, status):
                self._missed.append(each.moment)
        self._children = [moment for moment in self._children if not self._try(moment, status)]

    def _shows(self, each: _Pending, status: JobStatus) -> bool:
        """Return whether a failure has taken effect.

        A master that died may have lost the order, and its target may have been restarted for another reason. So an
        event must report that a master has carried the order out.
        """
        if each.fault.kind in KILLING and self._told.orders(each.fault) == each.orders:
            return False
        return has_hit(each.fault, each.before, status) or self._told.deaths(each.fault) > each.deaths

    @property
    def _faults(self) -> list[Fault]:
        """The failures that have not shown so far."""
        return [each.fault for each in self._pending]

    @property
    def _nodes_left(self) -> int | None:
        if self._nodes is None:
            return None
        faults = *self.injected, *self._faults
        return self._nodes - len({fault.target for fault in faults if fault.target.startswith("node:")})

    def _stopped(self) -> bool:
        return any(fault.kind == "stop" for fault in self._faults)

    def _status(self) -> JobStatus | None:
        """Return the job's status, once the failures that wait have been compared with it; None without a master."""
        try:
            status = self._master.ask(Release(self._released)).status
        except (MasterGoneError, RefusedError):
            return None
        self._settle(status)
        return status


class _Told:
    """Counts what the job's events report of failures. Reads each event once."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._killed: Counter[str] = Counter()
        self._orders: Counter[tuple[str, str]] = Counter()

    def deaths(self, fault: Fault) -> int:
        """Return how many children of the target of a fault `child` have been killed; 0 for another fault."""
        self._look()
        return self._killed[fault.target] if fault.kind == "child" else 0

    def orders(self, fault: Fault) -> int:
        """Return how many failures of this kind and target a master has carried out."""
        self._look()
        return self._orders[order_of(fault)]

    def _look(self) -> None:
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]  # the last line may not be whole
            self._read += len(whole) + bool(whole)
            events = _events(whole)
            self._killed += children_killed(events)
            self._orders += orders(events)


def _events(text: bytes) -> list[dict[str, Any]]:
    """Return the events of these lines. The last line, of a master that has died, may not be whole."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        with suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(line))
    return found
