"""The step at which all ranks stop. There the job ends, its layout changes, or ranks move.

    asked ─▶ decided: a step that no rank has passed ─▶ all ranks are there ─▶ `then` happens ─▶ all ranks go on

There is one stop point at a time. The journal records it, so the next master continues with the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.progress import Progress

__all__ = ["StopPoints"]


class StopPoints:
    """Decides on the next stop point, and knows when all ranks are there."""

    def __init__(self, context: MasterContext, progress: Progress) -> None:
        self._context, self._progress = context, progress

    def turn(self) -> None:
        """If the job is to finish, end it with the newest step that any rank may run to."""
        reason = self._context.state.finishing
        if reason and (newest := self.newest()) is not None:
            self.decide("end", min(newest, self._context.config.job.steps - 1), reason)

    def newest(self) -> int | None:
        """Return the newest step that any rank may run to.

        A stop point is this step or a later one, so no rank has passed it.

        None while that step is unknown, or while there is another stop point.
        """
        return None if self._context.state.stop.active else self._progress.most_granted()

    def decide(self, then: t.Then, step: int, reason: str, nodes: Sequence[str] = ()) -> None:
        """Make all ranks come to `step`; see `StopPoint`."""
        self._context.tell(t.StopPoint(step, then, reason, tuple(nodes)))

    def release(self, then: t.Then, reason: str) -> None:
        """Give the stop point up if it is for `then`: all ranks continue."""
        if self._context.state.stop.then == then:
            self.decide("go_on", -1, reason)

    def arrived(self) -> bool:
        """Return True if all ranks wait at the stop point."""
        state, stop = self._context.state, self._context.state.stop
        there = stop.active and not state.busy and state.are(state.ranks, "running")
        return there and all(rank.finished >= stop.step for rank in state.ranks.values())

    def reached(self) -> bool:
        """Return True if all ranks wait at the stop point, with all data for a restart from it.

        Ranks that move start again from memory. Those of a new layout start from disk, and all lines before it are
        written.
        """
        state, stop = self._context.state, self._context.state.stop
        written = min(state.persisted, self._progress.published) if stop.then == "relayout" else stop.step
        return self.arrived() and min(state.committed, written) >= stop.step
