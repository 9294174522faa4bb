"""The commands of the master to an agent: the difference between the wanted state and the agent's last report.

A command that an agent has already carried out changes nothing. So the master repeats each one until a report shows its
effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.events import ToAgent
from rolemesh_durable.protocol.master.progress import Progress
from rolemesh_durable.protocol.master.state import AgentRecord, RankRecord
from rolemesh_durable.protocol.master.wiring import Wiring
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["Commands", "halting_of", "launch_of", "strays_of"]

RESEND_S = 0.5
"""Seconds after which the master repeats a command that no report confirms."""
KEEPALIVE_S = 1.0
"""Seconds between two `Watermarks` to an agent, at most: an agent lives while it receives them."""


class Commands:
    """Remembers the commands to each agent. It sends a command when it changes, and again when it is due."""

    def __init__(self, context: MasterContext, progress: Progress) -> None:
        self._context, self._progress = context, progress
        self._wiring = Wiring(context.config)
        self._sent: dict[tuple[str, int, type, str], tuple[object, float]] = {}
        self._strays: dict[str, tuple[m.Report, object, tuple[StartRef, ...]]] = {}

    def turn(self) -> None:
        """Send every agent its commands."""
        state, epoch = self._context.state, self._context.config.epoch
        if state.phase == "stopping":
            stop = m.Stop(epoch, state.grace_s, state.message, state.committed, state.persisted, state.patient)
            for agent in state.agents.values():
                if agent.state in ("up", "starting"):
                    self._send(agent, stop)
        elif state.phase in ("starting", "running"):
            self._govern()

    def _govern(self) -> None:
        state, epoch, hooks = self._context.state, self._context.config.epoch, self._context.hooks
        advance = self._advance()
        self._wiring.turn(state.layout, state.ranks, state.agents, state.here)
        for name, agent in state.agents.items():
            if agent.state != "up":
                continue
            self._send(agent, advance, KEEPALIVE_S)
            if agent.report is None or agent.report.epoch < epoch:
                continue  # its ranks are not known yet; it answers the first Watermarks of an epoch at once
            ranks = state.here.get(name, ())
            if halts := (*halting_of(agent.report, ranks), *self._strays_on(name, agent.report)):
                self._send(agent, m.Halt(epoch, halts))
            if (launches := launch_of(agent, ranks)) and not any(holds(agent) for holds in hooks.holds):
                self._send(agent, m.Launch(epoch, state.timeline, launches))
            for commands in hooks.commands:
                for command in commands(agent, ranks):
                    self._send(agent, command)
            if hooks.says and (say := self._say(agent, ranks)) is not None:
                self._send(agent, say, KEEPALIVE_S)
            if agent.leaving and not ranks and state.recovery is None:
                self._send(agent, m.Stop(epoch, 0.0, "it leaves, and has no ranks any more"))
            if (wire := self._wiring.message(agent)) is not None:
                self._send(agent, wire)

    def _say(self, agent: AgentRecord, ranks: Iterable[RankRecord]) -> m.Say | None:
        """Return the messages of extensions for these ranks of `agent`; None if there are none."""
        hooks = self._context.hooks.says
        says = ((rank, tuple(each.sealed() for says in hooks for each in says(rank))) for rank in ranks)
        told = tuple(m.ForRank(*rank.launch.start, messages) for rank, messages in says if messages)
        if not told:
            return None
        before = self._sent.get((agent.place.agent, agent.incarnation, m.Say, ""), (None, 0.0))[0]
        if not isinstance(before, m.Say):
            return m.Say(self._context.config.epoch, 0, told)
        return before if before.ranks == told else m.Say(before.epoch, before.version + 1, told)

    def _strays_on(self, name: str, report: m.Report) -> tuple[StartRef, ...]:
        """Return the processes on an agent that no longer belong there: once per report, and again if ranks move."""
        state, known = self._context.state, self._strays.get(name)
        if known is None or known[0] is not report or known[1] is not state.here:
            known = self._strays[name] = report, state.here, strays_of(name, report, state.ranks)
        return known[2]

    def _advance(self) -> m.Watermarks:
        context, state = self._context, self._context.state
        groups: dict[str, int] = {}
        if state.snapshots and context.groups:
            for (role, _), record in state.ranks.items():
                if role in context.groups:
                    groups[role] = min(record.durable, groups.get(role, record.durable))
        granted = self._progress.granted if state.phase == "running" else -1
        return m.Watermarks(
            context.config.epoch, state.timeline, granted, state.committed, self._progress.published,
            state.persisted, groups, bool(state.finishing), state.last_step, self._away(),
            state.pause, state.layout, self._leaving(), self._failures_s(), state.cuts,
        )  # fmt: skip

    def _failures_s(self) -> float:
        """Return the mean seconds between recoveries, rounded to a power of two so that the value changes rarely."""
        attempts = self._context.state.attempts
        if not attempts:
            return 0.0
        return float(2 ** round(math.log2(max(1.0, (self._context.now - attempts[0].at) / len(attempts)))))

    def _leaving(self) -> dict[str, float]:
        """Return the nodes that leave, with the seconds left to each."""
        leaving, now = self._context.state.leaving, self._context.now
        return {node: max(0.0, round(leave.left_s(now), 0)) for node, leave in leaving.items()}

    def _away(self) -> tuple[StartRef, ...]:
        """Return the dead ranks of the roles that serve calls, so that callers can send their calls to other ranks."""
        services = self._context.config.job.graph.services
        if not services:
            return ()
        return tuple(
            StartRef(*ref, record.launch.generation - (record.state == "starting"))
            for ref, record in self._context.state.ranks.items()
            if ref.role in services and not record.alive
        )

    def _send(self, agent: AgentRecord, message: m.MasterToAgent, again_s: float = RESEND_S) -> None:
        """Send `message`, unless this incarnation got the same one less than `again_s` ago."""
        kind = message.message.name if isinstance(message, m.ToPart) else ""
        key = (agent.place.agent, agent.incarnation, type(message), kind)
        before, now = self._sent.get(key), self._context.now
        if before is None or before[0] != message or now >= before[1] + again_s:
            self._sent[key] = (message, now)
            self._context.want(ToAgent(agent.place.agent, agent.incarnation, message))


def launch_of(agent: AgentRecord, ranks: Iterable[RankRecord]) -> tuple[m.RankLaunch, ...]:
    """Return the ranks that should run on `agent` and whose present generation it has not reported."""
    starting = [rank for rank in ranks if rank.state == "starting"]
    if not starting:
        return ()
    reported = {r.ref: r.generation for r in agent.report.ranks} if agent.report else {}
    return tuple(rank.launch for rank in starting if reported.get(rank.launch.ref, -1) < rank.launch.generation)


def halting_of(report: m.Report, here: Iterable[RankRecord]) -> list[StartRef]:
    """Return the halting ranks of `here` whose end the agent has not reported."""
    halting = [rank.launch for rank in here if rank.state == "halting"]
    if not halting:
        return []
    gone = {seen.ref: seen.generation for seen in report.ranks if seen.state == "gone"}
    return [launch.start for launch in halting if gone.get(launch.ref, -1) < launch.generation]


def strays_of(name: str, report: m.Report, ranks: Mapping[RankRef, RankRecord]) -> tuple[StartRef, ...]:
    """Return the reported processes of ranks that the job does not have, or has on another agent."""
    processes = [seen for seen in report.ranks if seen.state != "gone"]
    return tuple(seen.start for seen in processes if seen.ref not in ranks or ranks[seen.ref].agent != name)
