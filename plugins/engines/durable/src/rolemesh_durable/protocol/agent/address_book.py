"""The addresses of the neighbours of an agent's ranks, from its master, and the ranks that still need them."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.agent.rank import AgentRank
from rolemesh_durable.protocol.agent.start_queue import StartQueue
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.neighbours import Neighbours
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["AddressBook"]


class AddressBook:
    """`version` is the newest version of the addresses."""

    def __init__(self, neighbours: Neighbours, at_once: int) -> None:
        self.version = -1
        self.layout = Layout()
        self._first = self._neighbours = neighbours
        self._set_ups: StartQueue[StartRef] = StartQueue(at_once)
        """The ranks between the receipt of their neighbours' addresses and `RankReady`."""
        self._peers: dict[RankRef, m.Peer] = {}
        self._meetings: dict[str, m.RendezvousAt] = {}

    def learn(self, layout: Layout) -> list[e.Effect]:
        """Take the job's layout. In a newer one ranks have other neighbours; an older one changes nothing."""
        if layout.number <= self.layout.number:
            return []
        self.layout, self._neighbours = layout, self._first.resized(layout)
        return [e.Relayout(layout)]

    def renew(self, wire: m.Addresses, ranks: Mapping[RankRef, AgentRank]) -> list[e.ToRank]:
        """Take a newer version, or the changes since this one. Return the messages to ranks that are set up."""
        if wire.version <= self.version or wire.since > self.version:
            return []
        self.version = wire.version
        told = {peer.ref: peer for peer in wire.peers}
        new = {key: peer for key, peer in told.items() if self._peers.get(key) != peer}
        self._peers |= new
        self._meetings |= {meeting.role: meeting for meeting in wire.rendezvous}
        effects: list[e.ToRank] = []
        for key, rank in ranks.items():
            if key in new and rank.life in ("starting", "up"):
                self._set_ups.add(rank.start)
            elif rank.start not in self._set_ups:
                effects += self._tell(key, rank, new)
        return effects

    def settled(self, rank: AgentRank) -> None:
        """Note that a rank is ready, or gone: another one may set up."""
        self._set_ups.arrived(rank.start)

    def go(self, ranks: Mapping[RankRef, AgentRank], now: float) -> list[e.ToRank]:
        """Send as many of the ranks that wait for their setup as may go now all their neighbours' addresses."""
        effects: list[e.ToRank] = []
        for role, number, generation in self._set_ups.go(now):
            rank = ranks.get(RankRef(role, number))
            if rank is not None and rank.launch.generation == generation:
                effects += self._tell(RankRef(role, number), rank, self._peers)
        return effects

    def _tell(self, key: RankRef, rank: AgentRank, new: Mapping[RankRef, m.Peer]) -> list[e.ToRank]:
        """Send a rank those of the `new` addresses that are its neighbours'."""
        mine = self._peers.get(key)
        if mine is None or mine.generation != rank.launch.generation or not rank.reachable:
            return []  # made before this generation was up; another one follows
        neighbours = self._neighbours.of(key, rank.launch.collective)
        if not (fresh := tuple(new[peer] for peer in sorted(neighbours & new.keys()))):
            return []
        return [e.ToRank(*key, m.Connect(fresh, self._meetings.get(key[0])))]
