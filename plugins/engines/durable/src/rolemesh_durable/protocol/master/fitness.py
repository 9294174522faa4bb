"""Nodes are measured before ranks start there, and those that are unfit are left to the ladder."""

from __future__ import annotations

from rolemesh.api.failures import Failure
from rolemesh_durable.protocol.fitness import unfit
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.state import AgentRecord

__all__ = ["Fitness"]

COMES = ("wanted", "starting", "up")
LONG_S = 5.0
"""After so long it is said what the start waits for."""


class Fitness:
    """Judges nodes together: each by what the others have measured, as soon as all that are to have ranks have.

    What a node was found to be holds as long as the job; it is measured once.
    """

    def __init__(self, context: MasterContext) -> None:
        self._context = context
        self._since: float | None = None
        """Since when there have been nodes to judge."""
        self.together: tuple[str, ...] = ()
        """The nodes that are to be judged, as of this turn."""

    def open(self, agent: AgentRecord) -> bool:
        """Whether the agent's node has not been judged, so that no rank may start there."""
        return bool(self._context.outline.checks) and agent.place.node not in self._context.state.checked

    @property
    def _unjudged(self) -> list[AgentRecord]:
        state = self._context.state
        coming = [agent for agent in state.agents.values() if agent.state in COMES and self.open(agent)]
        homes = {home for _, home in state.homes} if coming else set[str]()
        return [agent for agent in coming if agent.place.agent in homes]

    def turn(self) -> None:
        """Judge the nodes that can be."""
        context, state, unjudged = self._context, self._context.state, self._unjudged
        self._since = (context.now if self._since is None else self._since) if unjudged else None
        self.together = tuple(sorted(agent.place.node for agent in unjudged))
        found = {agent.place.node: agent.report.measured for agent in unjudged if agent.report is not None}
        if any(not found.get(agent.place.node) for agent in unjudged):
            return
        known, self.together = {**state.checked, **found}, ()
        for agent in unjudged:
            node = agent.place.node
            others = [theirs for other, theirs in known.items() if other != node]
            why = unfit(context.outline.checks, found[node], others)
            context.tell(t.NodeChecked(agent.place.agent, agent.incarnation, node, found[node], why))
            if why:
                context.failed(Failure("check", node=node, message=why))

    def warnings(self) -> tuple[str, ...]:
        """What takes long."""
        if self._since is None or self._context.now < self._since + LONG_S:
            return ()
        nodes = self.together
        return (f"no rank starts before the checks of {len(nodes)} nodes are over: {', '.join(nodes)}",)
