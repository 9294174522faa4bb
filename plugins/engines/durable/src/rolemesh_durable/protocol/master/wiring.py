"""The addresses that each agent needs: a new version when ranks have new places, sent as far as it concerns the agent.

The master makes a version when all ranks are up, so no version names a rank that is gone. An agent reports its version.
The master sends it the newer addresses of the neighbours of its ranks. So a restart costs only as much as the rank's
neighbours, and the next message makes up for a lost one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.master.state import AgentRecord, RankRecord
from rolemesh_durable.protocol.master_config import MasterConfig
from rolemesh_durable.protocol.neighbours import Neighbours

__all__ = ["Wiring"]

OF_AN_EPOCH = 1_000_000
"""Number of versions that a master may make. Those of the next master are newer."""


class _Home(msgspec.Struct):
    """The addresses that an agent needs.

    It may lack some if its version is before `since`; `latest` is its newest version.
    """

    incarnation: int
    ranks: tuple[RankRef, ...] = ()
    needs: frozenset[RankRef] = frozenset()
    since: int = 0
    latest: int = 0


class Wiring:
    """Remembers the places of all ranks at each version."""

    def __init__(self, config: MasterConfig) -> None:
        sizes = {launch.role: launch.world_size for launches in config.launches.values() for launch in launches}
        self._first = Neighbours(config.job.graph, sizes)
        self._neighbours, self._layout = self._first, Layout()
        self._epoch, self._version = config.epoch, config.epoch * OF_AN_EPOCH
        self._peers: dict[RankRef, tuple[m.Peer, int]] = {}
        self._meetings: dict[str, tuple[m.RendezvousAt, int]] = {}
        self._agents: tuple[tuple[str, int], ...] = ()
        self._homes: dict[str, _Home] = {}
        self._wired: Mapping[str, Sequence[RankRecord]] | None = None
        """The ranks of each agent at the newest version."""

    def turn(
        self,
        layout: Layout,
        ranks: Mapping[RankRef, RankRecord],
        agents: Mapping[str, AgentRecord],
        here: Mapping[str, Sequence[RankRecord]],
    ) -> None:
        """Make a new version if a rank has moved and all are up. `here` are the ranks of each agent; see `JobState`.

        The master sends no addresses of a new layout before all former ranks have taken it up.
        """
        if layout.number != self._layout.number:
            self._relayout(layout, ranks)
        up = tuple((name, agent.incarnation) for name, agent in agents.items() if agent.state == "up")
        if here is self._wired and up == self._agents:
            return
        for rank in ranks.values():
            if not rank.alive or rank.report is None or not rank.report.addresses or agents[rank.agent].state != "up":
                return
            if rank.report.layout < layout.number:
                return
        if any(agent.report is None for agent in agents.values() if agent.state == "up"):
            return
        known = {key: peer.generation for key, (peer, _) in self._peers.items()}
        moved = [key for key, rank in ranks.items() if known.get(key) != rank.launch.generation]
        if not moved and up == self._agents:
            self._wired = here
            return
        self._version += 1
        self._agents, self._wired = up, here
        for key in moved:
            self._place(key, ranks[key], agents[ranks[key].agent])
        news = frozenset(moved)
        for name, agent in agents.items():
            if agent.state == "up":
                self._renew(name, agent, here.get(name, ()), news)

    def message(self, agent: AgentRecord) -> m.Addresses | None:
        """Return the addresses that this agent lacks; None if it lacks none. The agent is up and has reported."""
        home = self._homes.get(agent.place.agent)
        wired = agent.report.wired if agent.report is not None else -1
        if home is None or home.incarnation != agent.incarnation or wired >= home.latest:
            return None
        since = wired if wired >= home.since else -1
        peers = [self._peers[key] for key in sorted(home.needs)]
        meetings = [self._meetings[role] for role in sorted({role for role, _ in home.ranks} & self._meetings.keys())]
        return m.Addresses(
            self._epoch,
            self._version,
            since,
            tuple(peer for peer, version in peers if version > since),
            tuple(meeting for meeting, version in meetings if version > since),
            self._layout,
        )

    def _relayout(self, layout: Layout, ranks: Mapping[RankRef, RankRecord]) -> None:
        self._layout, self._neighbours = layout, self._first.resized(layout)
        self._peers = {key: peer for key, peer in self._peers.items() if key in ranks}
        self._homes.clear()

    def _place(self, key: RankRef, rank: RankRecord, agent: AgentRecord) -> None:
        generation, report = rank.launch.generation, rank.report
        assert report is not None
        self._peers[key] = m.Peer(*key, agent.place.node, report.addresses, generation), self._version
        if report.rendezvous_port is not None:
            meeting = m.RendezvousAt(key[0], agent.host, report.rendezvous_port, generation)
            self._meetings[key[0]] = meeting, self._version

    def _renew(self, name: str, agent: AgentRecord, here: Sequence[RankRecord], moved: frozenset[RankRef]) -> None:
        home = self._homes.get(name)
        if home is None or home.incarnation != agent.incarnation:
            home = self._homes[name] = _Home(agent.incarnation, since=self._version, latest=self._version)
        ranks = tuple(rank.launch.ref for rank in here)
        if ranks != home.ranks:
            of = self._neighbours.of
            needs = [of(rank.launch.ref, rank.launch.collective) for rank in here]
            home.ranks, home.needs, home.since = ranks, frozenset().union(*needs), self._version
        if home.since == self._version or not moved.isdisjoint(home.needs):
            home.latest = self._version
