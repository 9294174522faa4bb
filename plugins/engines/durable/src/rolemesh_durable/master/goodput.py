"""The cost of failures, from the journal: each recovery, and the share of wall time that led to kept steps. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from rolemesh.api.observer import Event

__all__ = ["Account"]

MOST_RECOVERIES = 500
MOST_SPANS = 500
"""Maximum number of recoveries, and of lost times, that are kept one by one: the newest ones."""


class _Recovery(msgspec.Struct):
    number: int
    level: str
    causes: list[str]
    failures: list[str]
    restarted: list[str]
    seconds: float | None
    regained_s: float | None
    resumed: dict[str, int]
    outcome: str
    noticed: float


class Account(msgspec.Struct):
    """The account of a journal, updated event by event. It has bounded size and is plain data, so it can be stored."""

    begun: float | None = None
    running: float | None = None
    stopping: float | None = None
    saved: float | None = None
    """When the last checkpoint was written."""
    clock: str = ""
    origin: float = 0.0
    """The steady clock of the present master, and the wall time at which that clock was 0."""
    last_time: float = 0.0
    last_epoch: int = 0
    down: float = 0.0
    noticed: float | None = None
    """When the oldest failure without a plan happened; None if there is none."""
    recovery: int | None = None
    found: dict[int, _Recovery] = {}
    openings: dict[int, tuple[float, str]] = {}
    """The start and the cause of the time that each recovery costs."""
    recovered: set[int] = set()
    spans: list[tuple[float, float, str]] = []
    covered: float = 0.0
    lost: dict[str, float] = {}
    """The total of older spans than `spans`, up to the time `covered`."""

    def apply(self, event: Event) -> None:
        """Count the next event."""
        now = self._moment(event)
        if self.begun is None:
            self.begun = self.covered = now
        elif event.epoch > self.last_epoch:
            self.down += event.time - self.last_time
        self.last_time, self.last_epoch = event.time, event.epoch
        data = event.data
        match event.kind:
            case "job_running":
                self.running = now if self.running is None else self.running
            case "persisted":
                self.saved = now
            case "job_stopping":
                self.stopping = now
                if data.get("status", "done") != "done":
                    self.spans.append((self.saved or self.running or now, now, "unsaved"))
            case "failure" if self.noticed is None:
                self.noticed = now - data["silent_s"]
            case "recovery_planned":
                self._planned(event, now)
            case "recovery_launched" if self.recovery in self.found:
                self.found[self.recovery].resumed = {f"{r['role']}/{r['rank']}": r["resume"] + 1 for r in data["ranks"]}
            case "recovery_failed" if data["number"] in self.found:
                self.found[data["number"]].outcome = "failed"
                self.noticed = self.found[data["number"]].noticed
            case "recovered":
                self.recovered.add(data["number"])
                if one := self.found.get(data["number"]):
                    one.outcome, one.seconds = "recovered", round(now - one.noticed, 3)
            case "regained":
                self._regained(event, now)

    def _moment(self, event: Event) -> float:
        """Return when an event happened, by the steady clock of its master if the event says so."""
        at, clock = event.data.get("at"), event.data.get("clock", self.clock)
        if at is not None and clock != self.clock:
            self.clock, self.origin = clock, event.time - at
        return self.origin + at if at is not None and self.clock else event.time

    def _planned(self, event: Event, now: float) -> None:
        data = event.data
        number, causes = data["number"], data["causes"]
        since = noticed = self.noticed if self.noticed is not None else now
        before = self.found.get(self.recovery) if self.recovery is not None else None
        if before is not None and not before.outcome:
            before.outcome, noticed = "merged", before.noticed
        restarted = [f"{role}/{rank}" for role, rank in data["plan"]["restart"]]
        self.found[number] = _Recovery(
            number, data["plan"]["level"], causes, data["failures"], restarted, None, None, {}, "", noticed
        )
        while len(self.found) > MOST_RECOVERIES:
            del self.found[next(iter(self.found))]
        # This recovery includes the ranks that earlier ones have not restored.
        merged = [self.openings.pop(each) for each in list(self.openings) if each not in self.recovered]
        self.openings[number] = min([(since, (causes or ["unknown"])[0]), *merged])
        self.recovery, self.noticed = number, None

    def _regained(self, event: Event, now: float) -> None:
        number = event.data["number"]
        if one := self.found.get(number):
            one.regained_s = round(now - one.noticed, 3)
        since, cause = self.openings.pop(number, (now, ""))
        self.recovered.discard(number)
        self.spans.append((since, now, cause))
        if len(self.spans) > MOST_SPANS and self.running is not None and self.begun is not None:
            spans = sorted(self.spans)
            half = len(spans) // 2
            start = [(self.begun, self.running, "start")] if self.covered == self.begun else []
            self.covered = _cover([*start, *spans[:half]], self.covered, float("inf"), self.lost)
            self.spans = spans[half:]

    def recoveries(self) -> list[dict[str, Any]]:
        """Return the recoveries in order; if there are very many, the newest.

        `level`, `causes`, `failures` (in words), `restarted` (ranks; of a failed recovery, those it tried to restart),
        `seconds` from the failure (of a hang: from the last progress) until the ranks were ready, `regained_s` until
        they had reached their former steps (None: the job ended before), `resumed` (by rank, the step from which it
        continued), `outcome`.
        """
        every = (msgspec.to_builtins(one) for one in self.found.values())
        return [{name: value for name, value in one.items() if name != "noticed"} for one in every]

    def goodput(self, wall_s: float) -> dict[str, Any]:
        """Return the account of a job's wall time.

        `share` is the part of `wall_s` that is not in `lost_s`. Lost by cause: ``start`` until all ranks were ready,
        ``stop`` from the decision to end until the end, and for each cause of a failure (``signal``, ``node_lost``, …)
        the time from it until the restarted ranks had reached their former steps. A job that did not end well also
        lost what it did after its last checkpoint on disk: ``unsaved``. Overlapping times count once, for the earlier
        cause. Other roles may have run meanwhile, so the share is a lower bound. `master_down_s` is the time
        without a master, in which ranks run: it is not lost.
        """
        if self.begun is None:
            return {"share": None, "productive_s": None, "lost_s": {}, "master_down_s": 0.0}
        end = self.begun + wall_s
        spans = list(self.spans)
        if self.covered == self.begun:
            spans.append((self.begun, end if self.running is None else self.running, "start"))
        if self.stopping is not None:
            spans.append((self.stopping, end, "stop"))
        until = end if self.stopping is None else self.stopping
        spans += [(since, until, cause) for since, cause in self.openings.values()]
        lost = dict(self.lost)
        _cover(sorted(spans), self.covered, end, lost)
        productive = max(0.0, wall_s - sum(lost.values()))
        return {
            "share": round(productive / wall_s, 4) if wall_s > 0 else None,
            "productive_s": round(productive, 3),
            "lost_s": {cause: round(seconds, 3) for cause, seconds in lost.items()},
            "master_down_s": round(self.down, 3),
        }


def _cover(spans: list[tuple[float, float, str]], covered: float, end: float, lost: dict[str, float]) -> float:
    """Add the time of `spans`, in order, between `covered` and `end` to `lost`. Return the end of the covered time."""
    for since, until, cause in spans:
        seconds = min(until, end) - max(since, covered)
        if seconds > 0:
            lost[cause] = lost.get(cause, 0.0) + seconds
            covered = max(covered, min(until, end))
    return covered
