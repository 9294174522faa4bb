"""The master's part of bans: it bars the nodes that a plan bans, and lifts each ban in time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rolemesh_durable.protocol.master.extension import ExtensionRecord, MasterExtension, MasterParts, Slice
from rolemesh_durable.protocol.master.state import JobState, Recovery

__all__ = ["BanLifted", "Banned", "Bans", "NodesBanned"]

BANNED = "banned"
"""The label of a banned node in `JobState.barred`."""


class Banned(Slice):
    """The bans in force."""

    key = "bans"

    nodes: dict[str, float] = msgspec.field(default_factory=dict)
    """The length of each node's ban, in seconds."""
    recovery: int = -1
    """The newest recovery whose bans are known."""


class NodesBanned(ExtensionRecord, frozen=True, tag="nodes_banned"):
    """No rank is placed on these nodes, because of a recovery by `level`. `nodes` has the seconds for each."""

    nodes: dict[str, float]
    recovery: int
    level: str
    at: float

    def apply(self, state: JobState) -> None:
        """Bar ranks from the nodes. A node that is banned already gets the new length."""
        bans = state.slice(Banned)
        bans.nodes |= self.nodes
        bans.recovery = self.recovery
        state.barred |= {(node, BANNED) for node in self.nodes}


class BanLifted(ExtensionRecord, frozen=True, tag="ban_lifted"):
    """Ranks may be placed on a node again."""

    node: str
    why: str
    at: float

    def apply(self, state: JobState) -> None:
        """Admit ranks."""
        del state.slice(Banned).nodes[self.node]
        state.barred.discard((self.node, BANNED))


class Bans(MasterExtension):
    """Bars nodes. A ban lasts at least as long as its plan says: a new master begins to count again."""

    records = (NodesBanned, BanLifted)
    slice = Banned

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._since: dict[str, float] = {}
        """The time since which this master knows each ban."""

    def turn(self) -> None:
        """Note the bans of a recovery that begins, and lift those whose time is over."""
        context = self._context
        bans, recovery, now = context.state.slice(Banned), context.state.recovery, context.now
        if recovery is not None and recovery.plan.ban and recovery.number > bans.recovery:
            nodes = {node: seconds for node, seconds in recovery.plan.ban.items() if self._leaves(recovery, node)}
            for node in nodes:
                self._since.pop(node, None)
            self.tell(NodesBanned(nodes, recovery.number, recovery.plan.level, now))
        for node, seconds in list(bans.nodes.items()):
            if now >= self._since.setdefault(node, now) + seconds:
                self._lift(node, "its time is over")

    def make_room(self) -> bool:
        """Lift all bans if the last level finds no place: a node that may be at fault is better than none."""
        context = self._context
        recovery, nodes = context.state.recovery, list(context.state.slice(Banned).nodes)
        if recovery is None or not nodes or recovery.plan.level != context.ladder[-1].name:
            return False
        if context.now < recovery.since + recovery.plan.wait_s:
            return False
        for node in nodes:
            self._lift(node, "there is no other place")
        return True

    def warnings(self) -> Iterable[str]:
        """The nodes that are banned."""
        bans, now = self._context.state.slice(Banned), self._context.now
        left = {node: max(0.0, self._since.get(node, now) + length - now) for node, length in bans.nodes.items()}
        return [f"no rank is placed on node {node} for another {seconds:.0f} s" for node, seconds in left.items()]

    def _leaves(self, recovery: Recovery, node: str) -> bool:
        """Return True if the recovery moves all ranks that are on the node. Any other one could not be carried out."""
        here = {ref for ref in self._context.state.ranks if self._context.node(ref) == node}
        return here <= set(recovery.restart)

    def _lift(self, node: str, why: str) -> None:
        self._since.pop(node, None)
        self.tell(BanLifted(node, why, self._context.now))
