"""A master's machine from its journal: what an earlier master has decided, up to the last transition that it wrote.

What agents and ranks do now is not in the journal: they report it to whoever speaks with the newest epoch. Of a long
journal only the newest events are kept; a `Checkpoint` stands for those before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rolemesh.api.cluster import AgentPlace
from rolemesh.api.failures import Attempt, Failure, RecoveryPlan
from rolemesh.api.observer import Event
from rolemesh_durable.protocol.master.checkpoint import Checkpoint, KeptAgent, KeptAttempt, KeptRank, Moment, Unfinished
from rolemesh_durable.protocol.master.events import Move
from rolemesh_durable.protocol.master.machine import MOST_ATTEMPTS, MasterMachine
from rolemesh_durable.protocol.master.records import AgentRecord, RankRecord
from rolemesh_durable.protocol.master.resume import Origin

__all__ = ["Replay", "replay"]


def replay(machine: MasterMachine, journal: Iterable[Event], now: float, wall: float) -> None:
    """Bring a fresh machine to where the whole `journal` ends; see `Replay.finish`."""
    history = Replay(machine)
    for event in journal:
        history.apply(event)
    history.finish(now, wall)


class Replay:
    """Brings a fresh machine to where the journal ends: `restore`, `apply` each event, `commit`, `finish`.

    Without `finish` it can go on for ever, beside a master: its `checkpoint` is then what stands for all events so far.
    """

    def __init__(self, machine: MasterMachine) -> None:
        self.machine = machine
        self._clock = ""
        self._attempts: list[KeptAttempt] = []
        self._unfinished: Unfinished | None = None
        self._open: list[Failure] = []

    def apply(self, event: Event) -> None:
        """The next event."""
        machine, data = self.machine, event.data
        if event.kind in ("job_started", "master_recovered"):
            self._clock = data["clock"]  # each master says at its begin which clock it goes by
        machine.coordinator.replayed(event.kind, data)
        machine.hangs.replayed(event.kind, data)
        match event.kind:
            case "recovery_planned":
                plan = msgspec.convert(data["plan"], RecoveryPlan)
                begun = self._moment(event)
                self._unfinished = Unfinished(data["number"], plan, data["attempt"], begun)
                machine.coordinator.count = data["number"]
                machine.remember(self._open)
                self._open = []
                self._close("failed", begun)
                reached = tuple((role, rank, step) for role, rank, step in data["were"])
                if data["attempt"]:
                    attempt = Attempt(plan.level, data["at"], plan.restart, plan.reason, reached=reached)
                    self._attempts.append(KeptAttempt(attempt, begun))
                    del self._attempts[:-MOST_ATTEMPTS]
            case "recovered" | "recovery_failed":
                self._close("recovered" if event.kind == "recovered" else "failed", self._moment(event))
                self._unfinished = None if event.kind == "recovered" else self._unfinished
                for name in data.get("restarted", ()):
                    role, _, rank = name.rpartition("/")
                    machine.ranks[role, int(rank)].state = "running"
            case "failure":
                self._open.append(msgspec.convert(data["failure"], Failure))
            case _:
                _apply(machine, event.kind, data)

    def commit(self, step: int) -> None:
        """`step` is committed. How far that is is not an event, so it may be told once, at the end."""
        self.machine.committed = step
        for record in self.machine.ranks.values():
            record.safe, record.finished = max(record.safe, step), max(record.finished, step)

    def finish(self, now: float, wall: float) -> None:
        """The journal ends here: the machine goes on with what was under way.

        `now` is of the machine's monotonic clock, `JobOutline.clock`; `wall` is the time of day at that moment.
        """
        machine = self.machine
        machine.attempts = [each.by(machine.outline.clock, now, wall) for each in self._attempts]
        if machine.phase not in ("starting", "running"):
            return
        # What failed in a rank its agent reports again; that an agent is gone nobody else says.
        for failure in self._open:
            if failure.cause in ("agent_lost", "node_lost"):
                machine.coordinator.remember(failure, now)
        for record in machine.ranks.values():
            if machine.phase == "starting" and record.state == "running":
                record.state = "ready"
        if (left := self._unfinished) is not None:
            begun = left.begun.by(machine.outline.clock, now, wall)
            machine.coordinator.again(left.number, left.plan, left.attempt, begun, now)

    def _moment(self, event: Event) -> Moment:
        return Moment(self._clock, float(event.data["at"]), event.time)

    def _close(self, outcome: Any, at: Moment) -> None:
        if self._attempts and not self._attempts[-1].attempt.outcome:
            last = self._attempts[-1]
            closed = msgspec.structs.replace(last.attempt, outcome=outcome)
            self._attempts[-1] = msgspec.structs.replace(last, attempt=closed, ended=at)

    def checkpoint(self) -> Checkpoint:
        """What stands for all that has been applied."""
        machine = self.machine
        reached, regaining = machine.coordinator.kept()
        return Checkpoint(
            phase=machine.phase,
            status=machine.status,
            message=machine.message,
            grace_s=machine.grace_s,
            owned=machine.owned,
            never_started=machine.never_started,
            committed=machine.committed,
            persisted=machine.persisted,
            timeline=machine.timeline,
            origin=machine.origin,
            agents=[KeptAgent.of(agent) for agent in machine.agents.values()],
            ranks=[KeptRank.of(rank) for rank in machine.ranks.values()],
            refused=[(agent, incarnation, count) for (agent, incarnation), count in machine.refused.items()],
            failures=machine.failures,
            attempts=self._attempts,
            clock=self._clock,
            allowed=machine.hangs.kept(),
            count=machine.coordinator.count,
            reached=reached,
            regaining=regaining,
            unfinished=self._unfinished,
            open=self._open,
        )

    def restore(self, kept: Checkpoint) -> None:
        """Begin where `kept` was made."""
        machine = self.machine
        for name in ("phase", "status", "message", "grace_s", "owned", "never_started", "committed", "persisted"):
            setattr(machine, name, getattr(kept, name))
        machine.timeline, machine.origin = kept.timeline, kept.origin
        machine.agents |= {agent.place.agent: agent.record() for agent in kept.agents}
        for rank in kept.ranks:
            rank.onto(machine.ranks[rank.role, rank.rank])
        machine.refused = {(agent, incarnation): count for agent, incarnation, count in kept.refused}
        machine.failures, self._attempts = list(kept.failures), list(kept.attempts)
        machine.hangs.restored(kept.allowed)
        self._clock = kept.clock
        machine.coordinator.restored(kept.count, kept.reached, kept.regaining)
        self._unfinished, self._open = kept.unfinished, list(kept.open)


def _apply(machine: MasterMachine, kind: str, data: dict[str, Any]) -> None:
    match kind:
        case "job_started":
            machine.phase = "starting"
            machine.never_started = False
        case "job_detached":
            machine.owned = False
        case "job_running":
            machine.phase = "running"
            for record in machine.ranks.values():
                record.state = "running" if record.state == "ready" else record.state
        case "job_stopping":
            machine.phase, machine.status, machine.message = "stopping", data["status"], data["message"]
            machine.grace_s = data["grace_s"]
        case "job_ended":
            machine.phase = "ended"
        case "agent_started":
            place = AgentPlace(data["agent"], data["node"], dict(data["resources"]))
            agent = machine.agents.setdefault(place.agent, AgentRecord(place))
            agent.place, agent.incarnation, agent.state, agent.node_lost = place, data["incarnation"], "starting", False
            agent.leaving = False
        case "agent_up":
            agent = machine.agents[data["agent"]]
            agent.state, agent.pid, agent.host = "up", data["pid"], data["host"]
        case "agent_lost":
            agent = machine.agents[data["agent"]]
            agent.state, agent.node_lost, agent.leaving = "lost", data["node_lost"], False
            for record in machine.ranks.values():
                if record.agent == data["agent"]:
                    record.state = "failed"
        case "node_lost":
            machine.agents[data["agent"]].node_lost = True
        case "agent_leaving":
            machine.agents[data["agent"]].leaving = True
        case "agent_left":
            agent = machine.agents[data["agent"]]
            agent.state, agent.node_lost, agent.leaving = "lost", data["node_lost"], False
        case "agent_stopped":
            machine.agents[data["agent"]].state = "stopped"
        case "persisted":
            machine.persisted = data["step"]
        case "connections_refused":
            machine.refuse(data["agent"], data["incarnation"], data["count"])
        case "rolled_back":
            machine.roll_back(Origin(data["folder"], data["step"]))
        case "replanned":
            for place in msgspec.convert(data["places"], list[AgentPlace]):
                agent = machine.agents.setdefault(place.agent, AgentRecord(place))
                agent.place = place
            for move in msgspec.convert(data["moves"], list[Move]):
                _move(machine.ranks[move.role, move.rank], move)
        case "recovery_launched":
            for started in data["ranks"]:
                _launched(machine, started)
        case "rank_up" | "rank_ready" | "rank_done":
            record = machine.ranks[data["role"], data["rank"]]
            if record.launch.generation == data["generation"]:
                _rank(machine, record, kind, data)


def _rank(machine: MasterMachine, record: RankRecord, kind: str, data: dict[str, Any]) -> None:
    if kind == "rank_up":
        record.state, record.pid = "up", data["pid"]
    elif kind == "rank_ready":
        record.state = "running" if machine.phase == "running" else "ready"
    else:
        record.state, record.sha256 = "done", data["sha256"]
        record.finished = machine.outline.steps - 1
        record.safe = record.safe if machine.outline.snapshots.enabled else record.finished


def _launched(machine: MasterMachine, started: dict[str, Any]) -> None:
    record = machine.ranks[started["role"], started["rank"]]
    record.agent = started["agent"]
    record.launch = msgspec.structs.replace(
        record.launch,
        generation=started["generation"],
        resume=started["resume"],
        restore=started["restore"],
        replica=started["replica"],
        origin=machine.origin.folder,
        origin_step=machine.origin.step,
    )
    record.state, record.sha256, record.pid = "starting", "", 0
    record.finished = started["resume"]
    record.safe = min(record.safe, record.finished)


def _move(record: RankRecord, move: Move) -> None:
    record.agent = move.agent
    record.launch = move.applied(record.launch)
