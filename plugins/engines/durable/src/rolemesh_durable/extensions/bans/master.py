"""The master's part of bans: it bars the nodes that a plan bans, and lifts each ban in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from rolemesh_durable.protocol.master.extension import ExtensionRecord, MasterExtension, Slice
from rolemesh_durable.protocol.master.state import JobState, Recovery

__all__ = ["BanLifted", "Banned", "Bans", "NodesBanned"]

BANNED = "banned"
"""The label of a banned node in `JobState.barred`."""
MOST_AWAY_S = 600.0
"""Maximum number of seconds that count between two masters whose monotonic clocks differ. Only wall clocks tell that
time, and they may be wrong."""


class Banned(Slice):
    """The bans in force."""

    key = "bans"

    nodes: dict[str, float] = msgspec.field(default_factory=dict)
    """The length of each node's ban, in seconds."""
    since: dict[str, float] = msgspec.field(default_factory=dict)
    """The time at which each ban began, by the master's monotonic clock."""
    recovery: int = -1
    """The newest recovery whose bans are known."""

    def convert(self, told: Callable[..., float]) -> None:
        """Keep the age of each ban."""
        self.since = {node: told(at, most=MOST_AWAY_S) for node, at in self.since.items()}

    def left(self, now: float) -> dict[str, float]:
        """Return the seconds that each ban still lasts."""
        return {node: max(0.0, self.since[node] + seconds - now) for node, seconds in self.nodes.items()}


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
        bans.since |= dict.fromkeys(self.nodes, self.at)
        bans.recovery = self.recovery
        state.barred |= {(node, BANNED) for node in self.nodes}


class BanLifted(ExtensionRecord, frozen=True, tag="ban_lifted"):
    """Ranks may be placed on a node again."""

    node: str
    why: str
    at: float

    def apply(self, state: JobState) -> None:
        """Admit ranks."""
        bans = state.slice(Banned)
        del bans.nodes[self.node], bans.since[self.node]
        state.barred.discard((self.node, BANNED))


class Bans(MasterExtension):
    """Bars nodes. A ban ends when its plan says, whichever master is there: its slice has the beginning."""

    records = (NodesBanned, BanLifted)
    slice = Banned

    def turn(self) -> None:
        """Note the bans of a recovery that begins, and lift those whose time is over."""
        context = self._context
        bans, recovery, now = context.state.slice(Banned), context.state.recovery, context.now
        if recovery is not None and recovery.plan.ban and recovery.number > bans.recovery:
            nodes = {node: seconds for node, seconds in recovery.plan.ban.items() if self._leaves(recovery, node)}
            self.tell(NodesBanned(nodes, recovery.number, recovery.plan.level, now))
        for node in [node for node, seconds in bans.left(now).items() if not seconds]:
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
        left = self._context.state.slice(Banned).left(self._context.now)
        return [f"no rank is placed on node {node} for another {seconds:.0f} s" for node, seconds in left.items()]

    def _leaves(self, recovery: Recovery, node: str) -> bool:
        """Return True if the recovery moves all ranks that are on the node. Any other one could not be carried out."""
        here = {ref for ref in self._context.state.ranks if self._context.node(ref) == node}
        return here <= set(recovery.restart)

    def _lift(self, node: str, why: str) -> None:
        self.tell(BanLifted(node, why, self._context.now))
