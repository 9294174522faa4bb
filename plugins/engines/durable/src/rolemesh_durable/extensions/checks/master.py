"""The master's part of checks: it has nodes measured before ranks start there, and reports unfit ones as failures."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from rolemesh.api.failures import Failure
from rolemesh_durable.extensions.checks.judging import Limits, unfit
from rolemesh_durable.extensions.checks.messages import Measure, Measured, Measurements, NodeMeasured
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master.extension import ExtensionRecord, MasterExtension, MasterParts, Slice
from rolemesh_durable.protocol.master.state import AgentRecord, JobState, RankRecord

__all__ = ["Checked", "Checks", "NodeChecked"]

COMES = ("wanted", "starting", "up")
LONG_S = 5.0
"""Seconds after which the status says that the start waits for checks."""


class Checked(Slice):
    """The nodes that have been judged."""

    key = "checks"

    nodes: dict[str, Measurements] = msgspec.field(default_factory=dict)
    """The measurements on each node."""


class NodeChecked(ExtensionRecord, frozen=True, tag="node_checked"):
    """The measurements on an agent's node, and the reason why it is unfit; "" if it is fit."""

    agent: str
    incarnation: int
    node: str
    measured: tuple[Measured, ...]
    unfit: str = ""

    def apply(self, state: JobState) -> None:
        """Judge the node for the rest of the job. No rank may run on an unfit one."""
        state.slice(Checked).nodes[self.node] = self.measured
        if self.unfit:
            state.barred.add((self.node, "unfit"))


class Checks(MasterExtension):
    """Judges the nodes that will have ranks, once all of them are measured: it compares each with the others.

    A node is measured once in the life of a job.
    """

    records = (NodeChecked,)
    slice = Checked

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._limits = [Limits.of(name, use.options) for name, use in parts.context.config.job.checks.items()]
        self._since: float | None = None
        """The time since which there have been nodes to judge."""
        self._together: tuple[str, ...] = ()
        """The nodes to judge, as of this turn."""

    def holds(self, agent: AgentRecord) -> bool:
        """Return True if the agent's node has not been judged, so that no rank may start there."""
        return bool(self._limits) and agent.place.node not in self._context.state.slice(Checked).nodes

    def commands(self, agent: AgentRecord, ranks: Collection[RankRecord]) -> Iterable[m.MasterToAgent]:
        """Have the node measured."""
        if ranks and self.holds(agent) and agent.report is not None and not _results(agent):
            return (m.ToPart.of(self._context.config.epoch, Measure(self._together)),)
        return ()

    @property
    def _unjudged(self) -> list[AgentRecord]:
        state = self._context.state
        coming = [agent for agent in state.agents.values() if agent.state in COMES and self.holds(agent)]
        return [agent for agent in coming if agent.place.agent in state.here]

    def turn(self) -> None:
        """Judge the nodes, if all are measured."""
        context, state, unjudged = self._context, self._context.state, self._unjudged
        self._since = (context.now if self._since is None else self._since) if unjudged else None
        self._together = tuple(sorted(agent.place.node for agent in unjudged))
        found = {agent.place.node: _results(agent) for agent in unjudged}
        if any(not found.get(agent.place.node) for agent in unjudged):
            return
        known, self._together = {**state.slice(Checked).nodes, **found}, ()
        for agent in unjudged:
            node = agent.place.node
            others = [theirs for other, theirs in known.items() if other != node]
            why = unfit(self._limits, found[node], others)
            context.tell(NodeChecked(agent.place.agent, agent.incarnation, node, found[node], why))
            if why:
                context.failed(Failure("check", node=node, message=why))

    def warnings(self) -> Iterable[str]:
        """The start waits for checks."""
        if self._since is None or self._context.now < self._since + LONG_S:
            return ()
        nodes = self._together
        return (f"no rank starts before the checks of {len(nodes)} nodes are over: {', '.join(nodes)}",)


def _results(agent: AgentRecord) -> Measurements:
    """Return the results on the agent's node; empty until the last check is done."""
    found = agent.report.part(NodeMeasured) if agent.report is not None else None
    return found.results if found is not None else ()
