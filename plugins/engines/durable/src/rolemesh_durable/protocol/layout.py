"""The number of ranks of each role from one step on. Each resize gives the job a new layout."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.edge import hold_of

__all__ = ["Layout"]


class Layout(msgspec.Struct, frozen=True):
    """The result of resize number `number` (0: none yet). It holds for all steps after `step`.

    - `sizes`: the world sizes of the roles that were ever resized. The others keep their first size.
    - `since`: by resized role, the step of its latest resize.
    - `folder`: the persisted snapshot of `step`. Values that are in flight across that step come from there.
    """

    number: int = 0
    step: int = -1
    folder: str = ""
    sizes: dict[str, int] = {}
    since: dict[str, int] = {}

    def world_sizes(self, first: Mapping[str, int]) -> dict[str, int]:
        """Return the world sizes of all roles; `first` holds those that the job began with."""
        return {**first, **self.sizes}

    def is_void(self, role: str, step: int) -> bool:
        """Return True if the memory of `role` after `step` belongs to ranks of an earlier layout."""
        return step <= self.since.get(role, -1)

    def next(self, number: int, step: int, folder: str, sizes: Mapping[str, int]) -> Layout:
        """Return the next layout, which holds after `step`."""
        since = {**self.since, **dict.fromkeys(sizes, step)}
        return Layout(number, step, folder, {**self.sizes, **sizes}, since)

    def back_at(self, step: int) -> Layout:
        """Return the layout after the job has gone back to a persisted snapshot of `step`.

        If that snapshot has another layout, it is cut for this one.
        """
        since = {role: min(step, at) for role, at in self.since.items()}
        return msgspec.structs.replace(self, step=min(self.step, step), since=since)

    def whole_from(self, graph: LogicalGraph) -> int:
        """Return the first step after `step` whose checkpoint is complete without `folder`.

        Before that step, ranks need values that only `folder` holds, cut for other ranks.
        """
        activity = Activity(graph)
        touched = [e for e in graph.edges if {graph.ops[e.src].role, graph.ops[e.dst].role} & self.since.keys()]
        return self.step + max((hold_of(edge, graph, activity, ()) for edge in touched), default=0)
