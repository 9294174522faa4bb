"""The master's side of the protocol: agents come up, ranks are wired and granted steps, commits follow, the end.

`MasterMachine.handle` takes an event and the present time and returns effects, in order. It never waits and never
reads a clock; the next event may come at any time, in any order that one agent's messages allow.

    starting ──all ranks ready──▶ running ──all ranks done──▶ stopping ──all agents gone──▶ ended
        └──────── failure, stop, lost owner ────────────────────▲
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rolemesh import failures
from rolemesh.cluster import AgentPlace
from rolemesh.failures import Failure
from rolemesh.protocol import messages as m

__all__ = ["Effect", "End", "Event", "JobOutline", "MasterMachine", "RankRecord"]

Status: TypeAlias = Literal["done", "failed", "interrupted"]
RankKey: TypeAlias = tuple[str, int]

FAILURE_WINDOW_S = 0.25
"""How long the first failure waits for others: a broken connection is often seen before the death behind it."""
STOP_MARGIN_S = 5.0
"""Beyond the grace, how long agents may take to kill and clean before they are given up."""
KEEPALIVE_S = 1.0


class JobOutline(msgspec.Struct, frozen=True):
    """What the machine must know of a job. `launches` maps each agent to its ranks; times are in seconds."""

    name: str
    epoch: int
    steps: int
    grant: int
    places: tuple[AgentPlace, ...]
    launches: dict[str, tuple[m.RankLaunch, ...]]
    start_timeout_s: float
    stop_grace_s: float
    owner_lease_s: float | None


# ------------------------------------------------------------------------------------------------------------ events


class Begin(msgspec.Struct, frozen=True):
    """The master runs."""


class FromAgent(msgspec.Struct, frozen=True):
    """An agent's message."""

    agent: str
    message: m.AgentToMaster


class AgentLost(msgspec.Struct, frozen=True):
    """The backend says that an agent or its node is gone."""

    agent: str
    why: str
    node_lost: bool = False


class StartFailed(msgspec.Struct, frozen=True):
    """The backend could not reserve the bundles or start the agents."""

    why: str


class StopAsked(msgspec.Struct, frozen=True):
    """Somebody wants the job to end."""

    reason: str


class OwnerSeen(msgspec.Struct, frozen=True):
    """The driver that owns the job has asked for news, so it lives."""


class Disown(msgspec.Struct, frozen=True):
    """The driver leaves the job to the master (``--detach``)."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


Event: TypeAlias = Begin | FromAgent | AgentLost | StartFailed | StopAsked | OwnerSeen | Disown | Tick

# ----------------------------------------------------------------------------------------------------------- effects


class StartAgents(msgspec.Struct, frozen=True):
    """Reserve the bundles and start the agents."""


class ToAgent(msgspec.Struct, frozen=True):
    """Deliver a message to an agent."""

    agent: str
    message: m.MasterToAgent


class Record(msgspec.Struct, frozen=True):
    """Journal a transition."""

    kind: str
    data: dict[str, Any]


class Publish(msgspec.Struct, frozen=True):
    """Metrics of ranks that an agent has merged."""

    metrics: tuple[m.Metrics, ...]


class End(msgspec.Struct, frozen=True):
    """The job is over: give everything back and write the result."""

    status: Status
    message: str


Effect: TypeAlias = StartAgents | ToAgent | Record | Publish | End


class RankRecord(msgspec.Struct):
    """What the master knows of a rank."""

    launch: m.RankLaunch
    agent: str
    node: str
    state: str = "starting"
    pid: int = 0
    position: m.RankPosition | None = None
    hello: m.RankHello | None = None
    finished: int = -1
    sha256: str = ""


class AgentRecord(msgspec.Struct):
    """What the master knows of an agent."""

    place: AgentPlace
    state: str = "starting"
    pid: int = 0
    host: str = ""


class MasterMachine:
    """One job's control, as a function of its events."""

    def __init__(self, outline: JobOutline) -> None:
        self.outline = outline
        self.phase: Literal["new", "starting", "running", "stopping", "ended"] = "new"
        self.status: Status = "done"
        self.message = ""
        self.committed = -1
        self.granted = -1
        self.agents = {place.agent: AgentRecord(place) for place in outline.places}
        self.ranks: dict[RankKey, RankRecord] = {
            (launch.role, launch.rank): RankRecord(launch, agent, self.agents[agent].place.node)
            for agent, launches in outline.launches.items()
            for launch in launches
        }
        self.failures: list[Failure] = []
        self._failed_at: float | None = None
        self._deadline = float("inf")
        self._owner_seen: float | None = None
        self._owned = outline.owner_lease_s is not None
        self._kept_alive = 0.0
        self._wired = False

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of one event at time `now` (seconds of any monotonic clock)."""
        if self.phase == "ended":
            return []
        match event:
            case Begin():
                return self._begin(now)
            case FromAgent(agent, message):
                return self._from_agent(agent, message, now)
            case AgentLost(agent, why, node_lost):
                return self._agent_lost(agent, why, node_lost, now)
            case StartFailed(why):
                for record in self.agents.values():
                    record.state = "lost"
                return self._stop("failed", why, 0.0, now)
            case StopAsked(reason):
                return self._stop("interrupted", reason, self.outline.stop_grace_s, now)
            case OwnerSeen():
                self._owner_seen = now
                return []
            case Disown():
                self._owned = False
                return [Record("job_detached", {})]
            case Tick():
                return self._tick(now)

    # -------------------------------------------------------------------------------------------------- life and time

    def _begin(self, now: float) -> list[Effect]:
        self.phase = "starting"
        self._owner_seen = now
        self._deadline = now + self.outline.start_timeout_s
        o = self.outline
        data = {"name": o.name, "steps": o.steps, "agents": [p.agent for p in o.places], "ranks": len(self.ranks)}
        return [Record("job_started", data), StartAgents()]

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        lease = self.outline.owner_lease_s
        if self._failed_at is not None and self.phase != "stopping" and now >= self._failed_at + FAILURE_WINDOW_S:
            effects += self._fail(now)
        elif self._owned and self.phase != "stopping" and lease and now > (self._owner_seen or now) + lease:
            effects += self._stop("interrupted", f"its driver has not been heard of for {lease:g} s", 1.0, now)
        elif self.phase == "starting" and now >= self._deadline:
            late = [f"{r}/{n} ({rec.state})" for (r, n), rec in self.ranks.items() if rec.state != "ready"]
            limit = f"{self.outline.start_timeout_s:g} s"
            effects += self._stop("failed", f"not ready within start_timeout_s = {limit}: {', '.join(late)}", 0.0, now)
        elif self.phase == "stopping" and now >= self._deadline:
            effects += self._end("agents did not confirm their end in time")
        if self.phase in ("starting", "running") and now >= self._kept_alive + KEEPALIVE_S:
            self._kept_alive = now
            effects += self._to_all(m.Grant(self.outline.epoch, self.granted))
        return effects

    def _stop(self, status: Status, message: str, grace_s: float, now: float) -> list[Effect]:
        if self.phase == "stopping":
            return []
        self.phase, self.status, self.message = "stopping", status, message
        self._deadline = now + grace_s + STOP_MARGIN_S
        effects: list[Effect] = [Record("job_stopping", {"status": status, "message": message})]
        effects += self._to_all(m.Stop(self.outline.epoch, grace_s, message))
        return effects + self._end_if_gone()

    def _end_if_gone(self) -> list[Effect]:
        return self._end("") if all(a.state in ("stopped", "lost") for a in self.agents.values()) else []

    def _end(self, note: str) -> list[Effect]:
        self.phase = "ended"
        data = {"status": self.status, "message": self.message, "committed": self.committed}
        return [Record("job_ended", data | ({"note": note} if note else {})), End(self.status, self.message)]

    def _to_all(self, message: m.MasterToAgent) -> list[Effect]:
        return [ToAgent(name, message) for name, agent in self.agents.items() if agent.state == "up"]

    # ------------------------------------------------------------------------------------------------------- failures

    def _note(self, failure: Failure, now: float) -> list[Effect]:
        if self.phase == "stopping":
            return []
        self.failures.append(failure)
        if self._failed_at is None:
            self._failed_at = now
        return [Record("failure", msgspec.to_builtins(failure))]

    def _fail(self, now: float) -> list[Effect]:
        first = failures.primary(self.failures)
        return self._stop("failed", failures.describe(first), 0.0, now)

    def _agent_lost(self, agent: str, why: str, node_lost: bool, now: float) -> list[Effect]:
        record = self.agents[agent]
        if record.state in ("lost", "stopped"):
            return []
        record.state = "lost"
        effects: list[Effect] = [Record("agent_lost", {"agent": agent, "node": record.place.node, "why": why})]
        for rank in self.ranks.values():
            if rank.agent == agent and rank.state != "done":
                rank.state = "lost"
        if self.phase == "stopping":
            return effects + self._end_if_gone()
        on_it = [f"{r}/{n}" for (r, n), rec in self.ranks.items() if rec.agent == agent]
        message = f"{why}; its ranks were {', '.join(on_it) or 'none'}"
        cause: failures.Cause = "node_lost" if node_lost else "agent_lost"
        return effects + self._note(Failure(cause, node=record.place.node, message=message), now)

    # -------------------------------------------------------------------------------------------------- agents, ranks

    def _from_agent(self, agent: str, message: m.AgentToMaster, now: float) -> list[Effect]:
        record = self.agents.get(agent)
        if record is None or record.state == "lost":
            return []
        match message:
            case m.AgentUp():
                return self._agent_up(record, message)
            case m.Heartbeat(positions=positions, metrics=metrics):
                effects: list[Effect] = [Publish(metrics)] if metrics else []
                return effects + self._progress(positions)
            case m.RankHello():
                return self._hello(message)
            case m.RankReady():
                return self._ready(message)
            case m.RankDone():
                return self._done(message, now)
            case m.RankFailed(failure=failure):
                if rank := self.ranks.get((failure.role, failure.rank)):
                    rank.state = "failed"
                return self._note(failure, now)
            case m.Stopped():
                return self._agent_stopped(agent, record, now)
        return []

    def _agent_up(self, record: AgentRecord, up: m.AgentUp) -> list[Effect]:
        if record.state != "starting":
            return []
        record.state, record.pid, record.host = "up", up.pid, up.host
        data = {"agent": up.agent, "node": up.node, "pid": up.pid}
        if self.phase == "stopping":
            stop = m.Stop(self.outline.epoch, 0.0, self.message)
            return [Record("agent_up", data), ToAgent(up.agent, stop)]
        launch = m.Launch(self.outline.epoch, self.outline.launches[up.agent])
        return [Record("agent_up", data), ToAgent(up.agent, launch)]

    def _agent_stopped(self, agent: str, record: AgentRecord, now: float) -> list[Effect]:
        record.state = "stopped"
        effects: list[Effect] = [Record("agent_stopped", {"agent": agent})]
        if self.phase != "stopping":
            failure = Failure("agent_lost", node=record.place.node, message="the agent stopped without being asked")
            return effects + self._note(failure, now)
        return effects + self._end_if_gone()

    def _known(self, role: str, rank: int, generation: int) -> RankRecord | None:
        record = self.ranks.get((role, rank))
        return record if record is not None and record.launch.generation == generation else None

    def _hello(self, hello: m.RankHello) -> list[Effect]:
        record = self._known(hello.role, hello.rank, hello.generation)
        if record is None or record.state != "starting":
            return []
        record.state, record.pid, record.hello = "setup", hello.pid, hello
        data = {"role": hello.role, "rank": hello.rank, "pid": hello.pid, "node": record.node}
        effects: list[Effect] = [Record("rank_up", data)]
        if self._wired or any(r.hello is None for r in self.ranks.values()):
            return effects
        self._wired = True
        return effects + self._to_all(self._wire())

    def _wire(self) -> m.Wire:
        peers, meetings = [], []
        for (role, rank), record in self.ranks.items():
            assert record.hello is not None
            peers.append(m.Peer(role, rank, record.node, record.hello.addresses, record.launch.generation))
            if record.hello.rendezvous_port is not None:
                host = self.agents[record.agent].host
                meetings.append(m.RendezvousAt(role, host, record.hello.rendezvous_port, record.launch.generation))
        return m.Wire(self.outline.epoch, tuple(peers), tuple(meetings))

    def _ready(self, ready: m.RankReady) -> list[Effect]:
        record = self._known(ready.role, ready.rank, ready.generation)
        if record is None or record.state != "setup":
            return []
        record.state = "ready"
        data = {"role": ready.role, "rank": ready.rank, "setup_s": round(ready.setup_s, 3)}
        effects: list[Effect] = [Record("rank_ready", data)]
        if self.phase == "starting" and all(r.state == "ready" for r in self.ranks.values()):
            self.phase = "running"
            for r in self.ranks.values():
                r.state = "running"
            effects.append(Record("job_running", {}))
            effects += self._extend_grant()
        return effects

    # ------------------------------------------------------------------------------------------------ grants, commits

    def _progress(self, positions: tuple[m.RankPosition, ...]) -> list[Effect]:
        for position in positions:
            record = self._known(position.role, position.rank, position.generation)
            if record is not None:
                record.position = position
                record.finished = max(record.finished, position.finished)
        return self._commit()

    def _commit(self) -> list[Effect]:
        committed = min((r.finished for r in self.ranks.values()), default=-1)
        if committed <= self.committed or self.phase != "running":
            return []
        self.committed = committed
        effects: list[Effect] = [Record("committed", {"step": committed})]
        effects += self._to_all(m.Commit(self.outline.epoch, committed))
        return effects + self._extend_grant()

    def _extend_grant(self) -> list[Effect]:
        until = min(self.outline.steps - 1, self.committed + self.outline.grant)
        worth_it = until - self.granted >= max(1, self.outline.grant // 4) or until == self.outline.steps - 1
        if until <= self.granted or not worth_it:
            return []
        self.granted = until
        return self._to_all(m.Grant(self.outline.epoch, until))

    def _done(self, done: m.RankDone, now: float) -> list[Effect]:
        record = self._known(done.role, done.rank, done.generation)
        if record is None or record.state == "done":
            return []
        record.state, record.sha256 = "done", done.sha256
        record.finished = max(record.finished, done.finished)
        data = {"role": done.role, "rank": done.rank, "finished": done.finished, "sha256": done.sha256}
        effects: list[Effect] = [Record("rank_done", data), *self._commit()]
        if all(r.state == "done" for r in self.ranks.values()) and self._failed_at is None:
            effects += self._stop("done", "", self.outline.stop_grace_s, now)
        return effects
