"""Journeys of one test class. Undisturbed ones are made once, for all tests that compare with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from rolemesh.api.service import ServiceSpec
from rolemesh.api.workload import OperatorSpec
from rolemesh_testing.conformance import needed
from rolemesh_testing.workloads.journey import Journey, Kill, loads, travel
from rolemesh_testing.workloads.ranks import Ranks, Stage, Stages, Subject

if TYPE_CHECKING:
    from rolemesh_testing.workloads.conformance import WorkloadConformance

__all__ = ["Travelled", "cannot_be_set_up"]


def cannot_be_set_up(size: int) -> str:
    """Reason for skipping the other tests if `size` ranks cannot be set up."""
    return f"its ranks cannot be set up (world size {size})"


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

    def ranks(self, size: int, *, generation: int = 0, turns: bool = False, stage: Stage | None = None) -> Ranks:
        """Start fresh ranks."""
        test, forked = self._test, stage or self._stages.get(self.cls)
        how: dict[str, Any] = {"seed": test.seed, "steps": test.steps, "generation": generation, "turns": turns}
        start = partial(Ranks, forked, self._subject, size, answers=test.answer, **how)
        return needed(self._request, cannot_be_set_up(size), start)

    def go(self, ranks: Ranks, steps: range, *, stateful: bool | None = None, **how: Any) -> Journey:
        """Run the `steps` on these `ranks`; `how` as for `travel`."""
        state = self.stateful if stateful is None else stateful
        return travel(ranks, self.operators, self._test.step, steps, stateful=state, services=self.services, **how)

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
        kill: Kill | None = None,
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
            return self.go(ranks, chosen, repeats=self._repeats, kill=kill, every=every, chunk_rows=chunk_rows)
