"""One step to which all ranks come, and what happens there: the job ends, its layout changes, or ranks move.

    asked ─▶ decided: a step that no rank has passed ─▶ all ranks are there ─▶ `then` happens ─▶ all ranks go on

There is one stop point at a time. The journal tells it, so the next master comes to the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.progress import Progress

__all__ = ["StopPoints"]


class StopPoints:
    """Decides on the next stop point, and says when all ranks are there."""

    def __init__(self, context: MasterContext, progress: Progress) -> None:
        self._context, self._progress = context, progress

    def turn(self) -> None:
        """A job that is to finish ends with the newest step that any rank may run to."""
        reason = self._context.state.finishing
        if reason and (newest := self.newest()) is not None:
            self.decide("end", min(newest, self._context.outline.steps - 1), reason)

    def newest(self) -> int | None:
        """The newest step that any rank may run to: a stop point is this step or a later one, so no rank has passed it.

        None while that step is not known, or while there is another stop point.
        """
        return None if self._context.state.stop.active else self._progress.most_granted()

    def decide(self, then: t.Then, step: int, reason: str, nodes: Sequence[str] = ()) -> None:
        """All ranks come to `step`; see `StopPoint`."""
        self._context.tell(t.StopPoint(step, then, reason, tuple(nodes)))

    def release(self, then: t.Then, reason: str) -> None:
        """`then` is not to happen any more, if a stop point says so: all ranks go on."""
        if self._context.state.stop.then == then:
            self.decide("go_on", -1, reason)

    def reached(self) -> bool:
        """Whether all ranks wait at the stop point, with all that is needed to start again from it.

        Ranks that move start again from memory. Those of a new layout start from disk, and all lines before it are
        written.
        """
        state, stop = self._context.state, self._context.state.stop
        there = stop.active and not state.busy and state.are(state.ranks, "running")
        if not there or any(rank.finished < stop.step for rank in state.ranks.values()):
            return False
        written = min(state.persisted, self._progress.published) if stop.then == "relayout" else stop.step
        return min(state.committed, written) >= stop.step
