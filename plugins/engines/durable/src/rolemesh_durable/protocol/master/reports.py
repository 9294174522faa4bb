"""The reports of agents about themselves and their ranks, and the agents that are silent."""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh.api.failures import Cause, Failure
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.adoption import Adoption
from rolemesh_durable.protocol.master.checkpoints import Checkpoints
from rolemesh_durable.protocol.master.context import STOP_MARGIN_S, MasterContext
from rolemesh_durable.protocol.master.coordinator import Coordinator
from rolemesh_durable.protocol.master.state import AgentRecord, RankRecord

__all__ = ["Reports"]

SILENCE_S = 5.0
"""The master kills an agent that is silent for this many seconds, or for half its lease if that is less."""


class Reports:
    """Turns reports into transitions. It ignores those that are old, or of an earlier incarnation or generation."""

    def __init__(self, context: MasterContext, coordinator: Coordinator, checkpoints: Checkpoints) -> None:
        self._context, self._coordinator, self._checkpoints = context, coordinator, checkpoints
        self._adoption = Adoption(context)
        self._making: dict[str, tuple[str, ...]] = {}
        self._late_at: dict[str, float] = {}
        """Time from which on the end of a rank's process is worth a warning."""

    def message(self, name: str, message: m.AgentToMaster) -> None:
        """Handle a message of an agent."""
        agent = self._context.state.agents.get(name)
        if agent is None:
            return
        if isinstance(message, m.FromPart):
            self._context.hooks.from_part(message.message)
        elif message.incarnation != agent.incarnation:
            return
        elif isinstance(message, m.AtWork):
            agent.heard = self._context.now
        elif agent.state in ("lost", "stopped"):
            return
        elif isinstance(message, m.Stopped):
            self.gone(name, agent.incarnation, "" if self._context.state.phase == "stopping" else "it has ended itself")
        elif message.seq > agent.seq:
            self._report(agent, message)

    def _report(self, agent: AgentRecord, report: m.Report) -> None:
        context, state, name = self._context, self._context.state, agent.place.agent
        first = agent.seq < 0
        agent.heard, agent.seq, agent.report = context.now, report.seq, report
        if agent.state == "starting":
            context.tell(t.AgentUp(name, agent.incarnation, report.node, report.pid, report.host))
        self._refusals(agent, report.refused)
        if report.metrics and report.timeline == state.timeline:
            context.want(e.Publish(name, report.metrics))  # the last lines come with an agent's last report
        if state.phase == "stopping":
            self._ends(name, [str(seen.ref) for seen in report.ranks if seen.state == "ending"])
            return
        for seen in report.ranks:
            key = seen.ref
            record = state.ranks.get(key)
            if record is not None and record.agent == name and record.launch.generation == seen.generation:
                self._rank(key, record, seen)
        if first:
            self._adoption.reported(agent, report)
        if report.timeline == state.timeline:
            self._checkpoints.told((name, report.incarnation), report.persisted)
        self._warning(name, report.warning)
        for text in report.making:
            if text not in self._making.get(name, ()):
                context.tell(t.Environment(name, report.node, text))
        self._making[name] = report.making
        for reported in context.hooks.agent_reported:
            reported(agent, report)

    def _ends(self, name: str, ranks: Sequence[str]) -> None:
        """Extend the job's end while processes of ranks wait for their threads and exit handlers.

        The warning comes after `STOP_MARGIN_S`: until then a process may only release its memory, and its log does not
        say what it waits for.
        """
        context, limit = self._context, self._context.now + STOP_MARGIN_S
        if ranks and context.state.patient:
            context.deadline = max(context.deadline, limit)
            if late := [rank for rank in ranks if self._late_at.setdefault(rank, limit) <= context.now]:
                context.warnings[name] = f"waiting for threads or exit handlers of {', '.join(late)}; see its log"

    def _warning(self, name: str, warning: str) -> None:
        """Record each problem once, and when the agent has none any more."""
        context, before = self._context, self._context.warnings.get(name, "")
        if warning:
            context.warnings[name] = warning
            if new := [problem for problem in warning.split("; ") if problem not in before.split("; ")]:
                context.tell(t.SnapshotWarning("; ".join(new), name))
        elif before:
            del context.warnings[name]
            context.tell(t.SnapshotWarningOver(name, before))

    def _refusals(self, agent: AgentRecord, count: int) -> None:
        """Record the number of refused connections: the first one, and each doubling."""
        name, state = agent.place.agent, self._context.state
        before = state.refused.get((name, agent.incarnation), 0)
        if count.bit_length() > before.bit_length():
            self._context.tell(t.ConnectionsRefused(name, agent.incarnation, agent.place.node, count))
        elif count > before:
            state.refuse(name, agent.incarnation, count)

    def _rank(self, key: RankRef, record: RankRecord, seen: m.RankReport) -> None:
        context, state, generation = self._context, self._context.state, seen.generation
        before, record.report = record.report, seen
        record.calls = max(record.calls, seen.calls)
        for reported in context.hooks.rank_reported:
            reported(record, before, seen)
        context.hooks.hear(record, before, seen)
        if record.state != "halting":  # a halting rank may go back to an earlier step
            record.finished = max(record.finished, seen.finished)
            record.durable = max(record.durable, seen.durable if state.snapshots else seen.finished)
        if seen.finish:
            context.finish(f"{key[0]}/{key[1]}: {seen.finish}")
        if record.state == "starting" and seen.state in ("up", "ready", "done"):
            context.tell(t.RankUp(*key, generation, seen.pid, context.node(key)))
        if record.state == "up" and seen.state in ("ready", "done"):
            context.tell(t.RankReady(*key, generation, round(seen.setup_s, 3)))
        if record.state in ("ready", "running") and seen.state == "done":
            context.tell(t.RankDone(*key, generation, seen.finished, seen.sha256, seen.verdict))
        if seen.state in ("failing", "failed", "gone") and record.state not in ("failed", "halting"):
            unknown = "it is gone, and its agent knows of no reason"
            gone = Failure("exit", *key, context.node(key), message=unknown, generation=generation)
            context.failed(seen.failure or gone)

    # ------------------------------------------------------------------------------------------------------- the end

    def gone(self, name: str, incarnation: int, why: str, node_lost: bool = False, silent_s: float = 0.0) -> None:
        """Handle the end of an agent's incarnation: a regular end, one on a leaving node, or a loss (`why`)."""
        context, state = self._context, self._context.state
        agent = state.agents.get(name)
        if agent is None or incarnation != agent.incarnation or agent.state in ("stopped", "wanted"):
            return
        node, on_it = agent.place.node, state.on(name)
        if agent.state == "lost" and not (agent.orphans and node_lost):
            if node_lost and not agent.node_lost:
                context.tell(t.NodeLost(name, incarnation, node))
                if state.recovery is not None and not self._coordinator.brings_back(on_it, node):
                    self._fails("node_lost", node, why, on_it)
            return
        if state.phase == "stopping":
            # The backend may see the end of an agent before the agent's own report arrives.
            lost = t.AgentLost(name, incarnation, node, why, node_lost)
            context.tell(lost if node_lost else t.AgentStopped(name, why))
            context.end_if_gone()
            return
        if agent.leaving and self._coordinator.brings_back(on_it, node if node_lost else ""):
            context.tell(t.AgentLeft(name, incarnation, node, why, node_lost))
            return
        if not node_lost and self._adoption.died(agent, why):
            return
        self._lost(agent, why, node_lost, silent_s)

    def _lost(self, agent: AgentRecord, why: str, node_lost: bool, silent_s: float = 0.0) -> None:
        """Handle the loss of an agent and its ranks."""
        context, name, node = self._context, agent.place.agent, agent.place.node
        on_it = context.state.on(name)
        context.tell(t.AgentLost(name, agent.incarnation, node, why, node_lost))
        if on_it:  # without ranks only its copies are lost
            self._fails("node_lost" if node_lost else "agent_lost", node, why, on_it, silent_s)

    def _fails(self, cause: Cause, node: str, why: str, ranks: Sequence[RankRef], silent_s: float = 0.0) -> None:
        message = f"{why}; its ranks were {', '.join(map(str, ranks))}"
        self._context.failed(Failure(cause, node=node, message=message), silent_s)

    def not_started(self, why: str, agents: tuple[str, ...]) -> None:
        """Handle a failed start of agents. The first time it ends the job, because no agent has ever worked."""
        context, state = self._context, self._context.state
        if state.never_started and state.recovery is None:
            context.stop("failed", why, 0.0)
            if state.phase == "stopping":
                context.end()
            return
        for name in agents:
            self.gone(name, state.agents[name].incarnation, why)

    def silent(self) -> None:
        """Kill the agents that have said nothing for too long."""
        context, limit = self._context, min(SILENCE_S, self._context.config.job.lease_s / 2)
        for name, agent in context.state.agents.items():
            silent_s = context.now - agent.heard
            if agent.state == "up" and silent_s > limit:
                context.want(e.KillAgent(name, agent.incarnation))
                why = f"the agent has not been heard of for {limit:g} s"
                self.gone(name, agent.incarnation, why, silent_s=silent_s)
        for agent in self._adoption.late():
            self._lost(agent, f"its next one has not come within {context.now - agent.orphaned_at:.0f} s", False)

    def take_over(self) -> None:
        """Begin with a new master."""
        self._adoption.take_over()
