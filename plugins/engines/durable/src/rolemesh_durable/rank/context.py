"""The context of a rank whose tasks may belong to different steps."""

from __future__ import annotations

from rolemesh.api.workload import RankContext
from rolemesh_durable.rank.call_sequence import CallSequence

__all__ = ["StepContext"]


class StepContext(RankContext):
    """In a task of an operator, `step` is the step of that operator or item. Elsewhere it is the rank's step."""

    @property
    def step(self) -> int:
        """See `RankContext.step`."""
        line = CallSequence.present()
        return line.step if line is not None else self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
