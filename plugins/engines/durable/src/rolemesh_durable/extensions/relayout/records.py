"""The records of resizes and drains, and the part of a job's state that they change."""

from __future__ import annotations

import msgspec

from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.extension import ExtensionRecord, Slice
from rolemesh_durable.protocol.master.relayout import given_up
from rolemesh_durable.protocol.master.state import JobState, Leave

__all__ = [
    "Drain",
    "DrainAsked",
    "DrainOver",
    "DrainWaiting",
    "DrainWanted",
    "Drained",
    "Relayout",
    "Resize",
    "ResizeAsked",
    "ResizeRefused",
    "ResizeTried",
    "ResizeWanted",
    "Resized",
]


class ResizeWanted(e.ExtensionEvent, frozen=True):
    """A request of a client or a scaler for other numbers of ranks."""

    sizes: dict[str, int]
    reason: str


class ResizeTried(e.ExtensionEvent, frozen=True):
    """A client's question whether there is room for other numbers of ranks."""

    sizes: dict[str, int]


class DrainWanted(e.ExtensionEvent, frozen=True):
    """A client's request to empty a node, or to take it `back`.

    The node leaves in `notice_s`; 0: at an unknown time.
    """

    node: str
    reason: str
    notice_s: float = 0.0
    back: bool = False


class Resize(msgspec.Struct):
    """A pending resize to `sizes`. `number` is the number of the layout with these sizes."""

    number: int
    sizes: dict[str, int]
    reason: str


class Drain(msgspec.Struct):
    """A pending or finished drain of a node; see `DrainAsked`."""

    reason: str
    agent: str = ""
    waiting: str = ""
    """The resources that its ranks lacked elsewhere at the last attempt; "" if they had room."""
    done: bool = False
    """True once the node has no ranks."""


class Relayout(Slice):
    """The requests that the job has not carried out yet, and the drained nodes."""

    key = "relayout"

    resize: Resize | None = None
    """The pending resize; None if there is none."""
    drains: dict[str, Drain] = msgspec.field(default_factory=dict)
    """The nodes that ranks must leave or have left."""


class ResizeAsked(ExtensionRecord, frozen=True, tag="resize_asked"):
    """A request for other numbers of ranks: `sizes`."""

    number: int
    sizes: dict[str, int]
    reason: str
    at: float

    def apply(self, state: JobState) -> None:
        """Record the request. Its number is taken."""
        state.layouts = self.number
        state.slice(Relayout).resize = Resize(self.number, self.sizes, self.reason)


class Resized(ExtensionRecord, frozen=True, tag="resized"):
    """The ranks of the new layout run, `seconds` after all ranks were at the step."""

    number: int
    step: int
    sizes: dict[str, int]
    seconds: float
    at: float

    def apply(self, state: JobState) -> None:
        """Forget the request, which is carried out."""
        _forget(state)


class ResizeRefused(ExtensionRecord, frozen=True, tag="resize_refused"):
    """The request is refused, and the job keeps its ranks."""

    number: int
    why: str
    at: float

    def apply(self, state: JobState) -> None:
        """Forget the request."""
        _forget(state)


class DrainAsked(ExtensionRecord, frozen=True, tag="drain_asked"):
    """A node leaves in `notice_s` (0: at an unknown time). Its ranks move before, and no other rank may come.

    With `agent`, the agent of this name has got a SIGTERM, which counts as the notice.
    """

    node: str
    reason: str
    at: float
    notice_s: float = 0.0
    agent: str = ""

    def apply(self, state: JobState) -> None:
        """Record that the node leaves."""
        state.slice(Relayout).drains[self.node] = Drain(self.reason, self.agent)
        state.leaves(self.node, Leave(self.at, self.notice_s))


class DrainWaiting(ExtensionRecord, frozen=True, tag="drain_waiting"):
    """There is no room for the ranks of these nodes, so they stay for now."""

    nodes: tuple[str, ...]
    missing: str

    def apply(self, state: JobState) -> None:
        """Record the resources that the drains wait for."""
        for node in self.nodes:
            state.slice(Relayout).drains[node].waiting = self.missing


class Drained(ExtensionRecord, frozen=True, tag="drained"):
    """A node has no ranks any more, `seconds` after the request."""

    node: str
    seconds: float
    at: float

    def apply(self, state: JobState) -> None:
        """Bar ranks from the node."""
        state.slice(Relayout).drains[self.node].done = True
        state.barred.add((self.node, "drained"))


class DrainOver(ExtensionRecord, frozen=True, tag="drain_over"):
    """A node may have ranks again, or is gone."""

    node: str
    why: str

    def apply(self, state: JobState) -> None:
        """Record that the node stays."""
        del state.slice(Relayout).drains[self.node]
        state.barred.discard((self.node, "drained"))
        state.stays(self.node)


def _forget(state: JobState) -> None:
    state.slice(Relayout).resize = None
    if state.stop.then == "relayout":
        state.stop = given_up(state.stop)
