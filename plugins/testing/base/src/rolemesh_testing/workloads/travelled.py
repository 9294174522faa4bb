"""Journeys of one test class. Undisturbed ones are made once, for all tests that compare with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from rolemesh.api.service import ServiceSpec
from rolemesh.api.workload import OperatorSpec
from rolemesh_testing.conformance import needed
from rolemesh_testing.workloads.journey import Journey, Kill, boundaries, drawn, loads, travel
from rolemesh_testing.workloads.ranks import Ranks, Stage, Stages, Subject
from rolemesh_testing.workloads.role import Role

if TYPE_CHECKING:
    from rolemesh_testing.workloads.conformance import WorkloadConformance

__all__ = ["LongRun", "Travelled", "cannot_be_set_up"]


def cannot_be_set_up(size: int) -> str:
    """Reason for skipping the other tests if `size` ranks cannot be set up."""
    return f"its ranks cannot be set up (world size {size})"


EVERY = 7
"""Steps between two snapshots of a long run."""
PART = 4
"""A further test of the long run takes at most this part of the run's time."""
SEED = "20261"
"""Hash seed of the ranks that are compared with others."""


class LongRun(NamedTuple):
    """A long journey, the same one with kills at drawn places and another hash seed, and what killed ranks have left.

    `left` are processes. `restarted` is the begin of the journey, with a restart of a rank before each step.
    """

    whole: Journey
    disturbed: Journey
    left: Sequence[str]
    restarted: Journey


class Travelled:
    """Makes journeys of a test class: fresh ranks, some steps, and the states at the end."""

    def __init__(
        self,
        test: WorkloadConformance,
        request: pytest.FixtureRequest,
        stages: Stages,
        subject: Subject,
        operators: Mapping[str, OperatorSpec],
        services: Mapping[str, ServiceSpec],
        stateful: bool,
        repeats: bool,
    ) -> None:
        self._test, self._request, self._stages, self._subject = test, request, stages, subject
        self.services = services
        self.cls, self.operators, self.stateful = subject.cls, operators, stateful
        self._repeats = stateful and repeats

    def ranks(
        self, size: int, *, generation: int = 0, turns: bool = False, stage: Stage | None = None, steps: int = 0
    ) -> Ranks:
        """Start fresh ranks of a job of `steps` steps; 0: those of the test class."""
        test, forked = self._test, stage or self._stages.get(self.cls)
        how: dict[str, Any] = {
            "seed": test.seed,
            "steps": steps or test.steps,
            "generation": generation,
            "turns": turns,
        }
        start = partial(Ranks, forked, self._subject, size, answers=test.answer, **how)
        return needed(self._request, cannot_be_set_up(size), start)

    def go(self, ranks: Ranks, steps: Iterable[int], *, stateful: bool | None = None, **how: Any) -> Journey:
        """Run the `steps` on these `ranks`; `how` as for `travel`."""
        state = self.stateful if stateful is None else stateful
        return travel(ranks, self.operators, self._step, steps, stateful=state, services=self.services, **how)

    def _step(self, role: Role, step: int) -> None:
        """Call the role as the test class does. Raises `AssertionError` if the class has no such step."""
        try:
            self._test.step(role, step)
        except LookupError as error:
            what = f"step() of the test class raises {type(error).__name__} at step {step}: {error}"
            raise AssertionError(f"{what}; let it work for long_steps = {self._test.long_steps} steps") from error

    def __call__(self, size: int, *, every: int = 1, chunk_rows: int = 0, steps: range | None = None) -> Journey:
        """Return an undisturbed journey on `size` ranks, of all steps or of `steps`. It is made once for all tests."""
        key = (type(self._test), str(self._subject.base), size, every, chunk_rows, steps)
        if key not in self._stages.journeys:
            go = partial(self.again, size, every=every, chunk_rows=chunk_rows, steps=steps)
            self._stages.journeys[key] = needed(self._request, f"its steps fail (world size {size})", go)
        journey: Journey = self._stages.journeys[key]
        return journey

    def again(
        self,
        size: int,
        *,
        steps: range | None = None,
        begun: Journey | None = None,
        kills: Sequence[Kill] = (),
        every: int = 1,
        chunk_rows: int = 0,
        generation: int = 0,
        stage: Stage | None = None,
    ) -> Journey:
        """Make a new journey: from the end of `begun` if given, on ranks that `stage` forks if given."""
        with self.ranks(size, generation=generation, stage=stage) as ranks:
            if begun is not None:
                ranks.restore({r: taken.state for r, taken in begun.states.items() if taken.state is not None})
                for called in loads(begun.calls, self.operators) if self._repeats else ():
                    called.again(ranks, range(size))
            chosen = steps if steps is not None else range(self._test.steps)
            return self.go(ranks, chosen, repeats=self._repeats, kills=kills, every=every, chunk_rows=chunk_rows)

    def long(self, size: int) -> LongRun:
        """Make a long run on `size` ranks. It is made once for all tests."""
        key = (type(self._test), str(self._subject.base), size, "long")
        if key not in self._stages.journeys:
            make = partial(self._long, size)
            self._stages.journeys[key] = needed(
                self._request, f"its steps fail in a long run (world size {size})", make
            )
        found: LongRun = self._stages.journeys[key]
        return found

    def _long(self, size: int) -> LongRun:
        test = self._test
        with self.ranks(size, steps=test.long_steps) as ranks:
            steps = within(range(test.long_steps), test.long_s, ranks)
            whole = self.go(ranks, steps, repeats=self._repeats, every=EVERY)
        made = range(whole.calls[-1].step + 1 if whole.calls else 0)
        kills = drawn(whole.calls, test.long_kills, size, Random(f"{self._subject.target} {size}"))
        with self.ranks(size, steps=test.long_steps, stage=self.other_stage()) as ranks:
            disturbed = self.go(ranks, made, repeats=self._repeats, every=EVERY, kills=kills)
            left = tuple(ranks.left)
        if not self.cls.deterministic:
            return LongRun(whole, disturbed, left, Journey([], {}))
        first = {called.step: number for number, called in reversed([*enumerate(whole.calls)])}
        possible = {*boundaries(whole.calls)}
        kills = [Kill(number, step % size) for step, number in first.items() if step and number in possible]
        with self.ranks(size, steps=test.long_steps) as ranks:
            steps = within(made, test.long_s / PART, ranks)
            return LongRun(whole, disturbed, left, self.go(ranks, steps, repeats=self._repeats, kills=kills))

    def other_stage(self) -> Stage:
        """Return a process to fork ranks from that has another hash seed."""
        return self._stages.get(self.cls, SEED)

    def begin_of_long(self, size: int) -> Journey:
        """Make the begin of a long run on another number of ranks."""
        with self.ranks(size, steps=self._test.long_steps) as ranks:
            steps = within(range(self._test.long_steps), self._test.long_s / PART, ranks)
            return self.go(ranks, steps, every=EVERY)


def within(steps: range, seconds: float, ranks: Ranks) -> Iterator[int]:
    """Yield `steps`, until the time is over; at least two. A wait for a processor does not count."""
    end = monotonic() + seconds - ranks.queued_s()
    for step in steps:
        if step > 1 and monotonic() > end + ranks.queued_s():
            return
        yield step
