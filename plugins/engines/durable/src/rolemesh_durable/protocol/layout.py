"""How many ranks each role has, from one step on: a job that is resized has one layout after another."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.edge import hold_of

__all__ = ["Layout"]


class Layout(msgspec.Struct, frozen=True):
    """What the resize number `number` has made of the job (0: none has yet); it holds for all steps after `step`.

    `sizes` are the world sizes of the roles that have ever been resized; the others have those that the job began with.
    `since`: by such a role, the step at which it was resized last. `folder` is the persisted snapshot of `step`: what
    was made up to then and crosses it is taken from there.
    """

    number: int = 0
    step: int = -1
    folder: str = ""
    sizes: dict[str, int] = {}
    since: dict[str, int] = {}

    def world_sizes(self, first: Mapping[str, int]) -> dict[str, int]:
        """Of all roles, where `first` are those that the job began with."""
        return {**first, **self.sizes}

    def is_void(self, role: str, step: int) -> bool:
        """Whether what a rank of `role` had in memory after `step` belongs to other ranks, of an earlier layout."""
        return step <= self.since.get(role, -1)

    def next(self, number: int, step: int, folder: str, sizes: Mapping[str, int]) -> Layout:
        """The one that follows, from `step` on."""
        since = {**self.since, **dict.fromkeys(sizes, step)}
        return Layout(number, step, folder, {**self.sizes, **sizes}, since)

    def back_at(self, step: int) -> Layout:
        """The job goes back to a persisted snapshot of `step`, which is cut for this layout if it is of another one."""
        since = {role: min(step, at) for role, at in self.since.items()}
        return msgspec.structs.replace(self, step=min(self.step, step), since=since)

    def whole_from(self, graph: LogicalGraph) -> int:
        """The first step after `step` whose checkpoint is whole: what is needed of before `step` lies in `folder` only,
        cut for other ranks."""
        activity = Activity(graph)
        touched = [e for e in graph.edges if {graph.ops[e.src].role, graph.ops[e.dst].role} & self.since.keys()]
        return self.step + max((hold_of(edge, graph, activity, ()) for edge in touched), default=0)
