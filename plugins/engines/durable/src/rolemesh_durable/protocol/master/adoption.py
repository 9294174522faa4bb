"""Agents that die while their ranks go on: the next incarnation on the node adopts them, which no level pays for.

What lives is known only to the node's zygotes. So nothing has failed until the next incarnation reports: what it has
not found has. If none comes within the lease, nothing is left: whoever looks after the dead agent's folder kills all.
"""

from __future__ import annotations

from rolemesh.api.failures import Failure
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.state import AgentRecord

__all__ = ["Adoption"]

MOST_DEATHS = 8
"""In a row, with no step committed between them: what kills the agent then may be its ranks."""
AGAIN_S = 0.5
"""After this an incarnation is started again that did not come up."""
RUNS = ("up", "ready", "running", "done")


class Adoption:
    """Decides what becomes of the ranks of agents that have died."""

    def __init__(self, context: MasterContext) -> None:
        self._context = context

    def died(self, agent: AgentRecord, why: str) -> bool:
        """An agent, and not its node, is gone: whether its ranks may live on, and its next incarnation is started."""
        context, state, name = self._context, self._context.state, agent.place.agent
        lives = any(state.ranks[key].state in (*RUNS, "starting") for key in state.on(name))
        came_up = agent.state == "up"
        times = agent.deaths + came_up if state.committed <= agent.died_at else 1
        if not lives or times > MOST_DEATHS or not (came_up or agent.orphans):
            return False
        if not agent.orphans:
            agent.orphaned_at = context.now
        context.tell(t.AgentDied(name, agent.incarnation, agent.place.node, why, times, state.committed))
        agent.heard = context.now
        if came_up:
            context.start_agents([name])
        return True

    def take_over(self) -> None:
        """Another master begins: it does not know for how long agents have been dead."""
        for agent in self._context.state.agents.values():
            agent.orphaned_at = self._context.now

    def late(self) -> list[AgentRecord]:
        """Agents whose next incarnation has not come in time; one that did not come up is started again."""
        context, found = self._context, []
        for name, agent in context.state.agents.items():
            if not agent.orphans:
                continue
            if context.now > agent.orphaned_at + context.outline.lease_s:
                found.append(agent)
                if agent.state == "starting":
                    context.want(e.KillAgent(name, agent.incarnation))
            elif agent.state == "lost" and context.now > agent.heard + AGAIN_S:
                context.start_agents([name])
        return found

    def reported(self, agent: AgentRecord, report: m.Report) -> None:
        """Ranks that have run on this agent, and that it does not know, have ended while there was none.

        If there are any, all that was there may be gone; so what was being started may have run, and has ended as well.
        """
        context, state, name = self._context, self._context.state, agent.place.agent
        there = {seen.ref: seen.generation for seen in report.ranks}
        missing = [key for key in state.on(name) if there.get(key, -1) < state.ranks[key].launch.generation]
        if not any(state.ranks[key].state in RUNS for key in missing):
            return
        for key in missing:
            record = state.ranks[key]
            if record.state in (*RUNS, "starting"):
                message = f"it ended while agent {name} was dead"
                context.failed(
                    Failure("agent_lost", *key, context.node(key), message=message, generation=record.launch.generation)
                )
