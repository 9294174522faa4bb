"""A rank takes up a new layout of its job between two steps. Its workload and its process stay the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rolemesh_durable.protocol.delivery.exact import OriginValues
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.origin_values import restore_inputs
from rolemesh_durable.protocol.rank.page import LAYOUT, Page
from rolemesh_durable.protocol.rank.ports import Ports

__all__ = ["LayoutChanges"]


class LayoutChanges:
    """Follows the layouts that the agent sends while the rank waits for a grant.

    All ranks meet at one step, and the agents persist their snapshots of it. Then the ranks of the resized roles end.
    Every other rank makes new ports for the edges from and to those roles. It takes the messages in flight on these
    edges from the persisted snapshot, so no operator runs again.
    """

    def __init__(
        self,
        layout: Layout,
        ports: Ports[Any],
        page: Page,
        control: Control,
        *,
        end: Callable[[int], None],
        resized: Callable[[Mapping[str, int]], None],
        origin: Callable[[str], OriginValues],
    ) -> None:
        """`layout` is the layout in which the rank was started.

        ``end(step)`` persists all that the rank has of `step`. ``resized(sizes)`` says which roles have
        other ranks now. ``origin(folder)`` returns the persisted snapshot in `folder`, as this rank sees it.
        """
        self._layout, self._ports, self._fields, self._control = layout, ports, page.fields, control
        self._end, self._resized, self._origin = end, resized, origin
        self._paused = -1
        self._wired = True

    def follow(self, finished: int) -> bool:
        """Do what the layout demands after step `finished`. Return whether the rank has other ports now.

        Raises what `end` and `origin` raise.
        """
        if self._pauses(finished):
            self._paused = finished
            self._end(finished)
        if not self._changes(finished):
            return False
        layout = self._control.layout
        changed = {role for role in layout.sizes if layout.is_void(role, layout.step)}
        edges = self._ports.relayout(layout, changed)
        self._resized({role: layout.sizes[role] for role in changed})
        restore_inputs(self._ports, edges, layout.step, partial(self._origin, layout.folder))
        self._layout, self._wired = layout, False
        self._fields[LAYOUT] = layout.number
        return True

    def is_due(self, finished: int) -> bool:
        """Return True if `follow` has something to do after step `finished`."""
        return self._pauses(finished) or self._changes(finished)

    @property
    def may_go_on(self) -> bool:
        """True if the rank belongs to the newest layout, and knows the addresses of all its peers."""
        self._wired = self._wired or self._ports.wired
        return self._wired and not self._is_over

    def _pauses(self, finished: int) -> bool:
        return self._control.pause == finished > self._paused

    def _changes(self, finished: int) -> bool:
        layout = self._control.layout
        return layout.number > self._layout.number and layout.step == finished and not self._is_over

    @property
    def _is_over(self) -> bool:
        """True if the job has resized the role of this rank. Then the agent kills the rank, which waits for that."""
        layout = self._control.layout
        return layout.number > self._layout.number and layout.is_void(self._ports.mail.site.role, layout.step)
