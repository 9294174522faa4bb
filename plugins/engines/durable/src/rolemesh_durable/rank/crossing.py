"""A rank takes up a new layout of its job, between two steps: its workload and its process stay what they are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.page import LAYOUT
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.rank.control import Control
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["Crossing"]


class End(Protocol):
    """Who has the snapshot of a step persisted (`rolemesh_durable.rank.boundary.Boundary`)."""

    def end(self, step: int) -> None:
        """`step` was the last one before something, which may not have been known by then."""


class Crossing:
    """Follows what the agent says of layouts while the rank waits for a grant.

    All ranks come to one step, and their snapshots of it are persisted. Then the ranks of the roles that are resized
    end, and the others begin again on the edges from and to them, what is under way there lies in that snapshot, and
    with their calls: none of their operators runs.
    """

    def __init__(
        self,
        layout: Layout,
        ports: Ports[Any],
        status_page: StatusPage,
        hooks: RankHooks,
        meter: Meter,
        control: Control,
        boundary: End | None,
        give: Callable[[str, int, Collection[int]], None],
    ) -> None:
        """`layout` is the one that the rank was started in. `give(folder, step, edges)` gives the in-ports of `edges`
        what was under way at `step`."""
        self._layout, self._ports, self._hooks, self._meter, self._control = layout, ports, hooks, meter, control
        self._fields = status_page.fields
        self._boundary, self._give = boundary, give
        self._paused = -1
        self._wired = True

    def follow(self, finished: int) -> bool:
        """The rank waits after step `finished`: do what is to be done there. Whether it has other ports now.

        Raises what a snapshot raises, and `SnapshotError` where what was under way cannot be taken over.
        """
        control = self._control
        if control.pause == finished > self._paused:
            self._paused = finished
            self._meter.close(finished)
            if self._boundary is not None:
                self._boundary.end(finished)
        layout = control.layout
        if layout.number <= self._layout.number or layout.step != finished or self._is_over:
            return False
        changed = {each for each in layout.sizes if layout.is_void(each, layout.step)}
        edges = self._ports.relayout(layout, changed)
        for relaid in self._hooks.relaid:
            relaid({role: layout.sizes[role] for role in changed})
        self._give(layout.folder, layout.step, edges)
        self._layout, self._wired = layout, False
        self._fields[LAYOUT] = layout.number
        return True

    @property
    def may_go_on(self) -> bool:
        """Whether there is a place for the rank in the layout, and it is known where all are that it talks to."""
        self._wired = self._wired or self._ports.wired
        return self._wired and not self._is_over

    @property
    def _is_over(self) -> bool:
        """Whether this rank's role has been resized: it is about to be killed, and to do nothing until then."""
        layout = self._control.layout
        return layout.number > self._layout.number and layout.is_void(self._ports.mail.site.role, layout.step)
