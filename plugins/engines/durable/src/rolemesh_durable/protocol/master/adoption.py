"""Agents that die while their ranks live: the next incarnation on the node adopts the ranks, at no level's cost.

Only the node's zygotes know which ranks live. So nothing counts as failed until the next incarnation reports; then the
ranks that it has not found have failed. The backend may need a minute to start a process on a busy machine, and ranks
lose nothing meanwhile. So the master waits for an incarnation as long as it waits for ranks that start (`hold_s`), and
the janitor of the dead agent does so, too. Starts that fail are repeated, for as long as the lease only.
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
"""Maximum number of deaths in a row without a committed step between them. After more, the ranks may be the cause."""
AGAIN_S = 0.5
"""Seconds after which an incarnation that did not come up is started again."""
RUNS = ("up", "ready", "running", "done")


class Adoption:
    """Decides about the ranks of agents that have died."""

    def __init__(self, context: MasterContext) -> None:
        self._context = context

    def died(self, agent: AgentRecord, why: str) -> bool:
        """Handle the death of an agent whose node lives.

        Return True if its ranks may live and its next incarnation starts.
        """
        context, state, name = self._context, self._context.state, agent.place.agent
        lives = any(rank.state in (*RUNS, "starting") for rank in state.here.get(name, ()))
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
        """Begin with a new master, which does not know for how long agents have been dead."""
        for agent in self._context.state.agents.values():
            agent.orphaned_at = self._context.now

    def late(self) -> list[AgentRecord]:
        """Return agents whose next incarnation has not come in time. Start again those whose start has failed."""
        context, job, found = self._context, self._context.config.job, []
        for name, agent in context.state.agents.items():
            if not agent.orphans:
                continue
            if context.now > agent.orphaned_at + (job.hold_s if agent.state == "starting" else job.lease_s):
                found.append(agent)
                if agent.state == "starting":
                    context.want(e.KillAgent(name, agent.incarnation))
            elif agent.state == "lost" and context.now > agent.heard + AGAIN_S:
                context.start_agents([name])
        return found

    def reported(self, agent: AgentRecord, report: m.Report) -> None:
        """Fail the ranks that have run on this agent and that its next incarnation does not know.

        If there are any, all processes there may be gone. So ranks that were about to start may have run, and have
        ended too.
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
