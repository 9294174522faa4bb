"""Checkpoints on disk: agents write parts for their ranks, and the master commits a checkpoint with all parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.edge import hold_of
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.progress import Progress

__all__ = ["Checkpoints"]

Teller: TypeAlias = tuple[str, int]
"""An incarnation of an agent."""


class Checkpoints:
    """Collects parts by step and rank, each with the incarnation that reported it."""

    def __init__(self, context: MasterContext, progress: Progress) -> None:
        self._context, self._progress = context, progress
        self._parts: dict[int, dict[RankRef, tuple[Teller, m.Persisted]]] = {}
        self._whole_since: dict[int, float] = {}
        self._completing = -1
        self._gaps = 0, 0
        graph = context.config.job.graph
        holds = [hold_of(edge, graph, Activity(graph), ()) for edge in graph.edges]
        self._held = max(holds, default=0)
        """Ranks that start again within this many steps after the job's origin read in-flight values from it."""

    def told(self, teller: Teller, parts: Sequence[m.Persisted]) -> None:
        """Note all parts that an agent now has on disk."""
        self._withdraw(teller, parts)
        for part in parts:
            self._add(teller, part)

    def _withdraw(self, teller: Teller, told: Sequence[m.Persisted]) -> None:
        """Remove the parts that an agent no longer reports: it has given them up and removed them from its disk."""
        there = {(part.step, part.role, part.rank, part.attempt) for part in told}
        for step, parts in self._parts.items():
            for key, (by, part) in list(parts.items()):
                if by == teller and (step, *key, part.attempt) not in there:
                    del parts[key]

    def _add(self, teller: Teller, part: m.Persisted) -> None:
        context, state, progress = self._context, self._context.state, self._progress
        rank = state.ranks.get(part.ref)
        if rank is None or (part.timeline, part.generation) != (state.timeline, rank.launch.generation):
            return  # made before the rank, or the whole job, went back
        if part.step <= state.persisted or not self.whole(part.step):
            return
        parts = self._parts.setdefault(part.step, {})
        parts[part.ref] = teller, part
        if len(parts) < len(state.ranks) or self._completing >= part.step or state.seeks_origin:
            return
        if not state.settled or progress.held:
            self._whole_since[part.step] = context.now  # agents will repeat or write the missing parts
        since = self._whole_since.setdefault(part.step, context.now)
        if not progress.lines_are_out(part.step, since):
            return  # a rank restored from disk lacks the lines before
        self._completing = part.step
        needed = state.origin.step if state.committed < state.origin.step + max(1, self._held) else -1
        context.want(e.CommitCheckpoint(part.step, tuple(parts[key][1] for key in state.ranks), needed))

    def _gap(self) -> int:
        """Return the number of steps after a layout change without a complete checkpoint: see `Layout.whole_from`."""
        layout = self._context.state.layout
        if layout.number != self._gaps[0]:
            self._gaps = layout.number, layout.whole_from(self._context.config.job.graph) - layout.step
        return self._gaps[1] if layout.number else 0

    def whole(self, step: int) -> bool:
        """Return True if there can be a checkpoint of `step` in the present layout."""
        return step >= self._context.state.layout.step + self._gap()

    def completed(self, step: int, error: str) -> None:
        """Note that the checkpoint of `step` is complete, or the `error` that prevented it."""
        context = self._context
        self._completing = -1
        if step <= context.state.persisted:
            return  # a newer one was faster, and its commit removed this one's parts
        if error:
            # Agents repeat their parts until the checkpoint is complete, so the master tries again.
            self._parts.pop(step, None)
            if context.warnings.get("") != error:
                context.tell(t.SnapshotWarning(error, step=step))
            context.warnings[""] = error
            return
        context.warnings.pop("", None)
        self._parts = {at: parts for at, parts in self._parts.items() if at > step}
        self._whole_since = {at: since for at, since in self._whole_since.items() if at > step}
        context.tell(t.CheckpointPersisted(step))

    def went_back(self, key: RankRef, step: int) -> None:
        """Forget a rank's parts after `step`, from which it starts again. It will write them again."""
        for at, parts in self._parts.items():
            if at > step:
                parts.pop(key, None)

    def roll_back(self) -> None:
        """Forget all parts, because the whole job goes back."""
        self._parts.clear()
        self._whole_since.clear()
        self._completing = -1
