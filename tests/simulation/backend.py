"""The simulated backend: it starts, finds, kills and loses agents, and keeps one master running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.agent import SimAgent
from tests.simulation.master import SimMaster
from tests.simulation.memory import NodeMemory

from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.agent.machine import AgentMachine
from rolemesh_durable.protocol.agent.reporting import Identity
from rolemesh_durable.protocol.master import events as me
from rolemesh_durable.protocol.neighbours import Neighbours

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Backend"]


class Backend:
    """The simulated backend: it starts and ends agents and masters."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.agents: dict[str, SimAgent] = {}
        self.started: dict[str, int] = {}
        self.masters: list[SimMaster] = []
        self.used: set[str] = set()
        self._pids = 100

    @property
    def master(self) -> SimMaster:
        """The newest master."""
        return self.masters[-1]

    def pid(self) -> int:
        """A process id that no other process has had."""
        self._pids += 1
        return self._pids

    def agent_machine(
        self, name: str, node: str, lease_s: float, incarnation: int, memory: NodeMemory, found: list[ae.Found]
    ) -> AgentMachine:
        """The machine of a new incarnation."""
        return AgentMachine(
            Identity(name, node, incarnation, pid=self.pid()),
            lease_s,
            Neighbours(self.world.job.graph, self.world.job.sizes),
            ae.Left(memory.timeline, tuple(found)),
            self.world.scenario.at_once,
        )

    # -------------------------------------------------------------------------------------------------------- masters

    def start_master(self) -> None:
        """Start a master. It replaces an earlier one, which may not know it."""
        if self.world.ended:
            return
        self.masters.append(SimMaster(self.world))
        self.master.begin()

    def to_master(self, agent: str, message: m.AgentToMaster) -> None:
        """An agent's message reaches the master; an old one that goes on hears nothing any more."""
        if isinstance(message, m.Report) and self.master.has_newer(agent, message):
            self.world.lose(message)
        self.master.handle(me.FromAgent(agent, message))

    def kill_master(self, restart: bool = True) -> None:
        """SIGKILL the master; it is started again."""
        master = self.master
        if master.alive:
            master.die()
            if restart:
                self.world.at(self.world.between(0.1, 1.5), self.start_master)

    def replace_master(self, lives_on_s: float) -> None:
        """A new master is started while the old one believes that it still is the master."""
        master = self.master
        if master.alive and not self.world.ended:
            self.world.note(
                "backend", f"the master of epoch {master.epoch} is given up, but lives for {lives_on_s:.2f} s"
            )
            self.world.at(lives_on_s, master.die)
            self.start_master()

    def revive(self) -> bool:
        """Agents do not hear the master: one that hangs is started again. Whether there is one, or will be."""
        if self.master.alive and self.master.frozen:
            self.kill_master()
        return not self.world.ended

    # --------------------------------------------------------------------------------------------------------- agents

    def start(self, places: tuple[me.Incarnation, ...]) -> None:
        """Start agents; earlier incarnations are dead before."""
        for at in places:
            name = at.place.agent
            if self.started.get(name, 0) >= at.incarnation:
                continue
            self.started[name] = at.incarnation
            self.world.at(0.1 + self.world.between(0.0, 0.5), self._start, at)

    def _start(self, at: me.Incarnation) -> None:
        world, name = self.world, at.place.agent
        if world.ended or self.started.get(name, 0) != at.incarnation:
            return
        if at.place.node in world.dead_nodes:
            self._tell(name, at.incarnation, "its node is gone", True)
            return
        if (world.chance(world.scenario.start_failures) and not world.calm) or world.starves("agent"):
            self._tell(name, at.incarnation, "it could not be started", False)
            return
        world.note("backend", f"agent {name}#{at.incarnation} starts on {at.place.node}")
        self.used.add(at.place.node)
        self.agents[name] = SimAgent(world, name, at.place.node, at.incarnation)

    def attach(self, known: tuple[me.Incarnation, ...]) -> None:
        """Find the agents of an earlier master."""
        names = {at.place.agent: at for at in known}
        for name, agent in list(self.agents.items()):
            if agent.alive and (name not in names or agent.incarnation > names[name].incarnation):
                agent.end("no master knows it")
        for name, at in names.items():
            found = self.agents.get(name)
            there = found is not None and found.alive and found.incarnation == at.incarnation
            if not there:
                # One that an earlier master has asked for may still be about to start: not any more.
                self.started[name] = max(self.started.get(name, 0), at.incarnation)
                if self.started[name] == at.incarnation and (found is None or found.incarnation < at.incarnation):
                    self.started[name] = at.incarnation
                    self._coming(name, at)
                else:
                    self._tell(name, at.incarnation, "it is gone", at.place.node in self.world.dead_nodes)

    def _coming(self, name: str, at: me.Incarnation) -> None:
        self.world.at(1.0, self._came, name, at)

    def _came(self, name: str, at: me.Incarnation) -> None:
        agent = self.agents.get(name)
        if agent is None or agent.incarnation < at.incarnation:
            self._tell(name, at.incarnation, "it never came", at.place.node in self.world.dead_nodes)

    def kill(self, name: str, incarnation: int) -> None:
        """SIGKILL an agent."""
        agent = self.agents.get(name)
        if agent is not None and agent.alive and agent.incarnation == incarnation:
            self.world.at(self.world.between(0.0, 0.2), agent.end, "it was killed")

    def send(self, name: str, incarnation: int, message: m.MasterToAgent) -> None:
        """A master's message, for one incarnation only."""
        agent = self.agents.get(name)
        if agent is not None and agent.incarnation == incarnation:
            self.world.deliver(agent.from_master, message)

    def agent_ended(self, agent: SimAgent, why: str, node_lost: bool) -> None:
        """The backend notices."""
        self._tell(agent.name, agent.incarnation, why, node_lost)

    def _tell(self, name: str, incarnation: int, why: str, node_lost: bool) -> None:
        event = me.AgentLost(name, incarnation, why, node_lost)
        self.world.at(self.world.between(0.01, 0.5), self._told, self.master, event)

    def _told(self, master: SimMaster, event: me.AgentLost) -> None:
        master.handle(event)

    def lose_node(self, node: str) -> None:
        """A node is gone with all that is on it."""
        if node in self.world.dead_nodes:
            return
        self.world.note("backend", f"node {node} is lost")
        self.world.dead_nodes.add(node)
        for agent in list(self.agents.values()):
            if agent.node == node and agent.alive:
                agent.end("its node is gone", True)
        self.world.wipe(node)
