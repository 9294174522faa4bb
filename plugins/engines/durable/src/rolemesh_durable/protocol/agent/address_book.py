"""Where the neighbours of an agent's ranks are, as its master tells it, and which of its ranks have to be told."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.agent.rank import AgentRank
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.neighbours import Neighbours
from rolemesh_durable.protocol.pacing import Pace
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["AddressBook"]


class AddressBook:
    """`version` is the newest of who is where; the agent at `copies_to` gets copies of this one's snapshots."""

    def __init__(self, neighbours: Neighbours, at_once: int) -> None:
        self.version = -1
        self.copies_to = ""
        self.layout = Layout()
        self._first = self._neighbours = neighbours
        self._set_ups: Pace[StartRef] = Pace(at_once)
        """From being told of its neighbours to being ready."""
        self._peers: dict[RankRef, m.Peer] = {}
        self._meetings: dict[str, m.RendezvousAt] = {}

    def learn(self, layout: Layout) -> list[e.Effect]:
        """The job has this layout, or had it once: in a newer one ranks have other neighbours."""
        if layout.number <= self.layout.number:
            return []
        self.layout, self._neighbours = layout, self._first.resized(layout)
        return [e.Relayout(layout)]

    def renew(self, wire: m.Addresses, ranks: Mapping[RankRef, AgentRank]) -> list[e.ToRank]:
        """A newer version, or what has changed since this one; what ranks that are set up are told of it."""
        if wire.version <= self.version or wire.since > self.version:
            return []
        self.version, self.copies_to = wire.version, wire.copies_to
        told = {peer.ref: peer for peer in wire.peers}
        new = {key: peer for key, peer in told.items() if self._peers.get(key) != peer}
        self._peers |= new
        self._meetings |= {meeting.role: meeting for meeting in wire.rendezvous}
        effects: list[e.ToRank] = []
        for key, rank in ranks.items():
            if key in new and rank.state in ("starting", "up"):
                self._set_ups.add(rank.start)
            elif rank.start not in self._set_ups:
                effects += self._tell(key, rank, new)
        return effects

    def settled(self, rank: AgentRank) -> None:
        """It is ready, or gone: another one may set up."""
        self._set_ups.arrived(rank.start)

    def go(self, ranks: Mapping[RankRef, AgentRank], now: float) -> list[e.ToRank]:
        """Of the ranks that are to set up, as many as may now are told of all their neighbours."""
        effects: list[e.ToRank] = []
        for role, number, generation in self._set_ups.go(now):
            rank = ranks.get(RankRef(role, number))
            if rank is not None and rank.launch.generation == generation:
                effects += self._tell(RankRef(role, number), rank, self._peers)
        return effects

    def _tell(self, key: RankRef, rank: AgentRank, new: Mapping[RankRef, m.Peer]) -> list[e.ToRank]:
        """Tell a rank of those of the `new` places that are its neighbours'."""
        mine = self._peers.get(key)
        if mine is None or mine.generation != rank.launch.generation or not rank.alive or not rank.hello:
            return []  # made before this generation was up; another one follows
        neighbours = self._neighbours.of(key, rank.launch.collective)
        if not (fresh := tuple(new[peer] for peer in sorted(neighbours & new.keys()))):
            return []
        return [e.ToRank(*key, m.Connect(fresh, self._meetings.get(key[0])))]
