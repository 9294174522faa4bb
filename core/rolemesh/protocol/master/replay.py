"""A master's machine from its journal: what an earlier master has decided, up to the last transition that it wrote.

What agents and ranks do now is not in the journal: they report it to whoever speaks with the newest epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rolemesh.cluster import AgentPlace
from rolemesh.failures import Attempt, Failure, RecoveryPlan
from rolemesh.observer import Event
from rolemesh.protocol.master.events import Move
from rolemesh.protocol.master.machine import MasterMachine
from rolemesh.protocol.master.records import AgentRecord, RankRecord
from rolemesh.protocol.master.resume import Origin

__all__ = ["replay"]


class _Clock:
    """Times of earlier masters, by the clock of this one: theirs may have been another machine's, or another boot's.

    Then wall times tell how long ago it was, as well as they can; what seems to be still to come counts as now.
    """

    def __init__(self, mine: str, now: float, wall: float) -> None:
        self._mine, self._now, self._wall = mine, now, wall
        self._theirs = ""

    def follow(self, event: Event) -> None:
        """Each master says at its begin which clock it goes by."""
        if event.kind in ("job_started", "master_recovered"):
            self._theirs = event.data["clock"]

    def at(self, event: Event) -> float:
        """When it was."""
        if self._theirs == self._mine:
            return min(float(event.data["at"]), self._now)
        return self._now - max(0.0, self._wall - event.time)


def replay(machine: MasterMachine, journal: Iterable[Event], now: float, wall: float) -> None:
    """Bring a fresh machine to where the journal ends. Nothing happens if that is empty; then `Begin` as usual.

    `now` is of the machine's monotonic clock, `JobOutline.clock`; `wall` is the time of day at that moment.
    """
    clock = _Clock(machine.outline.clock, now, wall)
    unfinished: tuple[int, RecoveryPlan, int, float] | None = None
    open_failures: list[Failure] = []
    for event in journal:
        data = event.data
        clock.follow(event)
        machine.coordinator.replayed(event.kind, data)
        machine.hangs.replayed(event.kind, data)
        match event.kind:
            case "recovery_planned":
                plan = msgspec.convert(data["plan"], RecoveryPlan)
                begun = clock.at(event)
                unfinished = (data["number"], plan, data["attempt"], begun)
                machine.coordinator.count = data["number"]
                machine.failures += open_failures
                open_failures = []
                _close(machine, "failed", begun)
                reached = tuple((role, rank, step) for role, rank, step in data["were"])
                machine.attempts.append(Attempt(plan.level, begun, plan.restart, plan.reason, reached=reached))
            case "recovered" | "recovery_failed":
                _close(machine, "recovered" if event.kind == "recovered" else "failed", clock.at(event))
                unfinished = None if event.kind == "recovered" else unfinished
                for name in data.get("restarted", ()):
                    role, _, rank = name.rpartition("/")
                    machine.ranks[role, int(rank)].state = "running"
            case "failure":
                open_failures.append(msgspec.convert(data["failure"], Failure))
            case _:
                _apply(machine, event.kind, data, now)
    if machine.phase in ("starting", "running"):
        # What failed in a rank its agent reports again; that an agent is gone nobody else says.
        for failure in open_failures:
            if failure.cause in ("agent_lost", "node_lost"):
                machine.coordinator.remember(failure, now)
        for record in machine.ranks.values():
            if machine.phase == "starting" and record.state == "running":
                record.state = "ready"
        if unfinished is not None:
            machine.coordinator.again(*unfinished, now)


def _apply(machine: MasterMachine, kind: str, data: dict[str, Any], now: float) -> None:
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
        case "agent_up":
            agent = machine.agents[data["agent"]]
            agent.state, agent.pid, agent.host = "up", data["pid"], data["host"]
        case "agent_lost":
            agent = machine.agents[data["agent"]]
            agent.state, agent.node_lost = "lost", data["node_lost"]
            for record in machine.ranks.values():
                if record.agent == data["agent"]:
                    record.state = "failed"
        case "agent_stopped":
            machine.agents[data["agent"]].state = "stopped"
        case "committed":
            machine.committed = data["step"]
            for record in machine.ranks.values():
                record.safe = record.finished = max(record.safe, data["step"])
        case "persisted":
            machine.persisted = data["step"]
        case "connections_refused":
            machine.refused[data["agent"], data["incarnation"]] = data["count"]
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


def _close(machine: MasterMachine, outcome: Any, at: float) -> None:
    if machine.attempts and not machine.attempts[-1].outcome:
        machine.attempts[-1] = msgspec.structs.replace(machine.attempts[-1], outcome=outcome, ended_at=at)
