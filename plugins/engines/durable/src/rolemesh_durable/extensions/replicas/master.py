"""The master's part of replicas: it tells each agent which one gets copies of its snapshots."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rolemesh_durable.extensions.replicas.messages import Copying, CopyTo
from rolemesh_durable.extensions.replicas.ring import next_of
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
from rolemesh_durable.protocol.master.state import AgentRecord, RankRecord

__all__ = ["Ring"]


class Ring(MasterExtension):
    """Orders the agents in a ring when an agent has come, gone or begun to leave, and all ranks are up."""

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._copies = parts.context.config.job.snapshots.replicas > 0
        self._holders: tuple[tuple[str, int, bool], ...] = ()
        self._orders: dict[str, CopyTo] = {}
        self._number = 0

    def turn(self) -> None:
        """Order the agents again if they have changed."""
        state = self._context.state
        if not self._copies:
            return
        up = {name: agent for name, agent in state.agents.items() if agent.state == "up"}
        holders = tuple((name, agent.incarnation, agent.leaving) for name, agent in up.items())
        if holders == self._holders:
            return
        if any(not rank.alive or rank.report is None or rank.agent not in up for rank in state.ranks.values()):
            return
        addresses = {name: agent.report.address for name, agent in up.items() if agent.report is not None}
        if len(addresses) < len(up) or not all(addresses.values()):
            return
        self._holders, self._number = holders, self._number + 1
        ring = next_of(up, (name for name, agent in up.items() if agent.leaving))
        epoch = self._context.config.epoch
        self._orders = {name: CopyTo(epoch, self._number, addresses.get(ring.get(name, ""), "")) for name in up}

    def commands(self, agent: AgentRecord, ranks: Collection[RankRecord]) -> Iterable[m.MasterToAgent]:
        """Send an agent its order until its reports confirm it."""
        order = self._orders.get(agent.place.agent)
        if order is None:
            return ()
        found = agent.report.part(Copying) if agent.report is not None else None
        if found == Copying(order.epoch, order.number):
            return ()
        return (m.ToPart.of(order.epoch, order),)
