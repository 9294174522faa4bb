"""The master's machine: what it hears of agents and ranks, what it wants of them, and how a job begins and ends.

`MasterMachine.handle` takes an event and the present time and returns effects, in order. It never waits and never
reads a clock; events may come at any time and in any order, messages of agents may be lost, late or repeated. All that
it decides by time it decides by its own (`own_time`), which does not pass while it has no turn.

    starting ──all ranks ready──▶ running ──all ranks done, all persisted──▶ stopping ──all agents gone──▶ ended
        └──────── a failure without a plan, stop, lost owner ──────────────────▲
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rolemesh.api import failures
from rolemesh.api.failures import Attempt, Failure, JobView, NodeState, RankView
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.commands import KEEPALIVE_S, Commands, halt_of, launch_of
from rolemesh_durable.protocol.master.coordinator import Coordinator
from rolemesh_durable.protocol.master.hangs import HangWatch
from rolemesh_durable.protocol.master.ladder import Diagnose, Rung
from rolemesh_durable.protocol.master.own_time import OwnTime
from rolemesh_durable.protocol.master.records import AgentRecord, RankKey, RankRecord
from rolemesh_durable.protocol.master.resume import Origin
from rolemesh_durable.protocol.master.wiring import Wiring
from rolemesh_durable.protocol.master_config import JobOutline
from rolemesh_durable.protocol.straggler import StragglerWatch

__all__ = ["MasterMachine"]

STOP_MARGIN_S = 5.0
"""Beyond the grace, how long agents may take to kill and clean before they are given up."""
SILENCE_S = 5.0
"""An agent that says nothing for this long, or for half its lease if that is less, is killed and counts as lost."""
LAST_SET_S = 600.0
"""How long a finished job waits for its last snapshot to be persisted."""
TROUBLE_S = 5.0
"""The same where an agent, or the master itself, says that it cannot be."""
_SETS = ""
"""In the place of an agent's name: trouble of the master's own, with making sets whole."""
OWNER_START_S = 15.0
"""How long, at least, a driver may be silent before its first word: it has to load what shows the job."""
MOST_FAILURES = 256
MOST_ATTEMPTS = 2048
"""How many failures and recoveries are remembered, of a job that has had more."""
LINES_S = 15.0
"""How long a snapshot, and a finished job, wait for the lines of metrics before it: some may be lost for good."""
ALIVE = ("up", "ready", "running")
LINES_AHEAD = 1024
"""How many steps ranks may be ahead of the last line of metrics that is written: the disk may be full."""


class MasterMachine:
    """One job's control, as a function of its events."""

    def __init__(self, outline: JobOutline, ladder: Sequence[Rung] = (), diagnosers: Sequence[Diagnose] = ()) -> None:
        self.outline = outline
        self.ladder = tuple(ladder)
        self.diagnosers = tuple(diagnosers)
        self.phase: Literal["new", "starting", "running", "stopping", "ended"] = "new"
        self.status: e.Status = "done"
        self.message = ""
        self.grace_s = 0.0
        self.committed = self.persisted = outline.origin_step
        self.granted = -1
        self.published = outline.origin_step
        self._held = self._limited = False
        self.released = outline.origin_step if outline.rehearsed else outline.steps
        self.timeline = 0
        self.origin = Origin(outline.origin, outline.origin_step)
        self.agents = {place.agent: AgentRecord(place) for place in outline.places}
        self.ranks: dict[RankKey, RankRecord] = {
            (launch.role, launch.rank): RankRecord(launch, agent, finished=launch.resume, safe=launch.resume)
            for agent, launches in outline.launches.items()
            for launch in launches
        }
        self.failures: list[Failure] = []
        self.attempts: list[Attempt] = []
        self.never_started = True
        self.owned = outline.owner_lease_s is not None
        self.coordinator = Coordinator(self)
        self.hangs = HangWatch(self)
        self.collective = tuple(dict.fromkeys(role for (role, _), r in self.ranks.items() if r.launch.collective))
        self._groups = {role: tuple(key for key in self.ranks if key[0] == role) for role in self.collective}
        self.deadline = float("inf")
        self.now = 0.0
        """The own time of the latest turn."""
        self._time = OwnTime()
        self._owner_seen, self._owner_known = 0.0, False
        self._commands = Commands()
        self._wiring = Wiring(outline)
        self._parts: dict[int, dict[RankKey, tuple[tuple[str, int], m.Persisted]]] = {}
        """Of each set, by rank: which incarnation of which agent has told of its part, and the part."""
        self._whole_since: dict[int, float] = {}
        self._completing = -1
        self._done_at: float | None = None
        self._trouble: dict[str, str] = {}
        self._making: dict[str, tuple[str, ...]] = {}
        self._stragglers = StragglerWatch()
        self.refused: dict[tuple[str, int], int] = {}
        """Connections that each agent's newest incarnation, and its ranks, have refused; as -1 all earlier ones."""

    def handle(self, event: e.Event, now: float) -> list[e.Effect]:
        """The effects of one event at time `now` (seconds of any monotonic clock)."""
        return self.turn((event,), now)

    def turn(self, events: Iterable[e.Event], clock: float) -> list[e.Effect]:
        """The effects of several events, one after the other: what follows from the whole is decided once, at the end.

        So many agents may report in one turn.
        """
        now = self.now = self._time.turn(clock)
        effects: list[e.Effect] = []
        for event in events:
            if self.phase == "ended":
                # The last master may have died between the journal and the result.
                return effects + ([e.End(self.status, self.message)] if isinstance(event, e.Begin) else [])
            effects += self._handle(event, now)
        if self.phase == "ended":
            return effects
        effects += self.run_if_ready(now)
        if self.phase in ("starting", "running"):
            effects += self.coordinator.step(now)
        if self.phase in ("starting", "running"):
            effects += self._commit() + self._end_if_done(now)
        return effects + self._command(now)

    def _handle(self, event: e.Event, now: float) -> list[e.Effect]:
        match event:
            case e.Begin():
                return self._begin(now)
            case e.FromAgent(agent, message):
                return self._from_agent(agent, message, now)
            case e.AgentLost(agent, incarnation, why, node_lost):
                return self._agent_lost(agent, incarnation, why, node_lost, now)
            case e.StartFailed(why, agents):
                return self._start_failed(why, agents, now)
            case e.Replanned() | e.OriginFound():
                return self.coordinator.answered(event, now)
            case e.SetCompleted(step, error):
                return self._set_completed(step, error)
            case e.Published(step, held):
                self.published, self._held = max(self.published, step), held
                return []
            case e.Released(step):
                self.released = max(self.released, step)
                return []
            case e.InjectAsked(kind, agent, role, rank):
                return self._inject(m.Inject(self.outline.epoch, kind, role, rank), agent)
            case e.StopAsked(reason):
                return self.stop("interrupted", reason, self.outline.stop_grace_s, now)
            case e.OwnerSeen():
                self._owner_seen, self._owner_known = now, True
                return []
            case e.Disown():
                self.owned = False
                return [e.Record("job_detached", {})]
            case e.Tick():
                return self._tick(now)

    @property
    def last_failures(self) -> list[Failure]:
        """The failures that the last decision was about: of a failed job, why it failed."""
        return self.coordinator.latest or self.failures

    # -------------------------------------------------------------------------------------------------- life and time

    def _begin(self, now: float) -> list[e.Effect]:
        self._owner_seen = now
        self.hangs.begin(now)
        o = self.outline
        if self.phase != "new":
            return self._begin_again(now)
        self.phase = "starting"
        self.deadline = now + o.start_timeout_s
        data = {"name": o.name, "steps": o.steps, "agents": list(self.agents), "ranks": len(self.ranks), "at": now}
        data["clock"] = o.clock
        if o.origin:
            data |= {"origin": o.origin, "origin_step": o.origin_step}
        return [e.Record("job_started", data), *self.start_agents(list(self.agents), now)]

    def _begin_again(self, now: float) -> list[e.Effect]:
        """After `replay`: find the agents, and take up what the last master had begun."""
        data = {"epoch": self.outline.epoch, "phase": self.phase, "at": now, "clock": self.outline.clock}
        effects: list[e.Effect] = [e.Record("master_recovered", data)]
        self.deadline = now + (STOP_MARGIN_S if self.phase == "stopping" else self.outline.start_timeout_s)
        known: list[e.Incarnation] = []
        for agent in self.agents.values():
            agent.heard = now
            if agent.state in ("starting", "up"):
                agent.state = "up" if agent.state == "up" else "starting"
                known.append(e.Incarnation(agent.place, agent.incarnation))
        effects.append(e.Attach(tuple(known)))
        if self.phase == "stopping":
            return effects + self._end_if_gone()
        if self.outline.snapshots.enabled:
            effects.append(e.FindSets(self.persisted))
        wanted = [name for name, agent in self.agents.items() if agent.state == "wanted"]
        return effects + (self.start_agents(wanted, now) if wanted else [])

    def start_agents(self, names: Sequence[str], now: float) -> list[e.Effect]:
        """Start these agents, each as its next incarnation."""
        effects: list[e.Effect] = []
        starts: list[e.Incarnation] = []
        for name in names:
            agent = self.agents[name]
            agent.incarnation += 1
            agent.state, agent.heard, agent.seq, agent.report = "starting", now, -1, None
            agent.leaving = agent.node_lost = False
            starts.append(e.Incarnation(agent.place, agent.incarnation))
            data = {"agent": name, "incarnation": agent.incarnation, "node": agent.place.node}
            effects.append(e.Record("agent_started", data | {"resources": agent.place.resources}))
        return [*effects, e.StartAgents(tuple(starts))]

    def _tick(self, now: float) -> list[e.Effect]:
        lease = self.outline.owner_lease_s
        if self.phase == "stopping":
            return self._end("agents did not confirm their end in time") if now >= self.deadline else []
        if lease and not self._owner_known:
            lease = max(lease, OWNER_START_S)
        if self.owned and lease and now > self._owner_seen + lease:
            return self.stop("interrupted", f"its driver has not been heard of for {lease:g} s", 1.0, now)
        if self.phase == "starting" and self.coordinator.recovery is None and now >= self.deadline:
            late = [
                f"{r}/{n} ({rec.state})" for (r, n), rec in self.ranks.items() if rec.state not in ("ready", "done")
            ]
            limit = f"{self.outline.start_timeout_s:g} s"
            return self.stop("failed", f"not ready within start_timeout_s = {limit}: {', '.join(late)}", 0.0, now)
        return self._silent(now) + self.hangs.tick(now)

    def stop(self, status: e.Status, message: str, grace_s: float, now: float) -> list[e.Effect]:
        """End the job: ranks are asked to stop, then killed."""
        if self.phase == "stopping":
            return []
        self.phase, self.status, self.message = "stopping", status, message
        self.deadline = now + grace_s + STOP_MARGIN_S
        self.grace_s = grace_s
        data = {"status": status, "message": message, "grace_s": grace_s, "at": now}
        return [e.Record("job_stopping", data), *self._end_if_gone()]

    def _end_if_gone(self) -> list[e.Effect]:
        return self._end("") if all(a.state in ("stopped", "lost", "wanted") for a in self.agents.values()) else []

    def _end(self, note: str) -> list[e.Effect]:
        self.phase = "ended"
        data = {"status": self.status, "message": self.message, "committed": self.committed}
        return [e.Record("job_ended", data | ({"note": note} if note else {})), e.End(self.status, self.message)]

    def _end_if_done(self, now: float) -> list[e.Effect]:
        if self.phase != "running" or self.coordinator.busy or any(r.state != "done" for r in self.ranks.values()):
            self._done_at = None
            return []
        last = self.outline.steps - 1
        # What is only in memory goes with the agents: the last lines and the last set are waited for, within reason.
        self._done_at = self._done_at if self._done_at is not None else now
        if self._held:
            self._done_at = now
        if self.published < last and now < self._done_at + LINES_S:
            return []
        if self.outline.snapshots.enabled and self.persisted < last:
            given_up = any(a.report is not None and a.report.given_up >= last for a in self.agents.values())
            limit = TROUBLE_S if given_up or _SETS in self._trouble else LAST_SET_S
            if now < self._done_at + limit:
                return []
        effects: list[e.Effect] = []
        if self.persisted == last > self.committed:
            # Replicas may be behind, but the last step is on disk.
            self.committed = last
            effects.append(e.Committed(last))
        return effects + self.stop("done", "", self.outline.stop_grace_s, now)

    # ----------------------------------------------------------------------------------------------- agents and ranks

    def _from_agent(self, name: str, message: m.AgentToMaster, now: float) -> list[e.Effect]:
        agent = self.agents.get(name)
        if agent is None:
            return []
        match message:
            case m.Report():
                if message.incarnation != agent.incarnation or agent.state in ("lost", "stopped"):
                    return []
                return self._report(agent, message, now) if message.seq > agent.seq else []
            case m.AtWork(incarnation=incarnation):
                agent.heard = now if incarnation == agent.incarnation else agent.heard
                return []
            case m.Stopped(incarnation=incarnation):
                return self._agent_stopped(agent, now) if incarnation == agent.incarnation else []
            case m.Stacks():
                return self.hangs.stacks(message, now)

    def _report(self, agent: AgentRecord, report: m.Report, now: float) -> list[e.Effect]:
        effects: list[e.Effect] = []
        name = agent.place.agent
        agent.heard, agent.seq, agent.report = now, report.seq, report
        if agent.state == "starting":
            self.never_started = False
            agent.state, agent.pid, agent.host = "up", report.pid, report.host
            data = {"agent": name, "incarnation": agent.incarnation, "node": report.node, "pid": report.pid}
            effects.append(e.Record("agent_up", data | {"host": report.host}))
        agent.pid, agent.host = report.pid, report.host
        effects += self._refusals(agent, report.refused)
        if report.metrics:
            effects.append(e.Publish(name, report.metrics))  # the last lines come with an agent's last report
        if self.phase == "stopping":
            return effects
        for rank in report.ranks:
            record = self.ranks.get((rank.role, rank.rank))
            if record is not None and record.agent == name and record.launch.generation == rank.generation:
                effects += self._rank(record, rank, now)
        if report.timeline == self.timeline:
            teller = name, report.incarnation
            self._withdraw(teller, report.persisted)
            for part in report.persisted:
                effects += self._persisted(teller, part, now)
        if report.trouble != self._trouble.get(name, ""):
            self._trouble[name] = report.trouble
            if report.trouble:
                effects.append(e.Record("snapshot_trouble", {"agent": name, "message": report.trouble}))
            else:
                del self._trouble[name]
                effects.append(e.Record("snapshot_trouble_over", {"agent": name}))
        for text in report.making:
            if text not in self._making.get(name, ()):
                effects.append(e.Record("environment", {"agent": name, "node": report.node, "message": text}))
        self._making[name] = report.making
        return effects + (self._leaves(agent, now) if report.leaving and not agent.leaving else [])

    def _leaves(self, agent: AgentRecord, now: float) -> list[e.Effect]:
        """An agent was told to end: its ranks are brought elsewhere before, which is no failure."""
        agent.leaving = True
        name, node = agent.place.agent, agent.place.node
        here = [key for key, record in self.ranks.items() if record.agent == name]
        data = {"agent": name, "incarnation": agent.incarnation, "node": node, "ranks": [f"{r}/{n}" for r, n in here]}
        effects: list[e.Effect] = [e.Record("agent_leaving", data)]
        return effects + (self.coordinator.leaves(agent, here, now) if here else [])

    def _refusals(self, agent: AgentRecord, count: int) -> list[e.Effect]:
        """Journal that an agent has refused connections: the first, and each time their number has doubled."""
        key = (agent.place.agent, agent.incarnation)
        before = self.refused.get(key, 0)
        if count <= before:
            return []
        self.refuse(*key, count)
        if count.bit_length() == before.bit_length():
            return []
        data = {"agent": agent.place.agent, "incarnation": agent.incarnation, "node": agent.place.node, "count": count}
        return [e.Record("connections_refused", data)]

    def refuse(self, agent: str, incarnation: int, count: int) -> None:
        """So many connections an incarnation of an agent has refused so far."""
        self.refused[agent, incarnation] = count
        for key in [key for key in self.refused if key[0] == agent and 0 <= key[1] < incarnation]:
            self.refused[agent, -1] = self.refused.get((agent, -1), 0) + self.refused.pop(key)

    def _rank(self, record: RankRecord, seen: m.RankReport, now: float) -> list[e.Effect]:
        before = record.report
        record.report = seen
        record.pid = seen.pid or record.pid
        who = {"role": seen.role, "rank": seen.rank, "generation": seen.generation}
        effects: list[e.Effect] = []
        if before is None or _place(before) != _place(seen):
            effects += self.hangs.moved((seen.role, seen.rank), now)
        if record.state != "halting":  # it is going back, maybe to before what it had reached
            record.finished = max(record.finished, seen.finished)
            record.safe = max(record.safe, seen.safe if self.outline.snapshots.enabled else seen.finished)
        if record.state == "starting" and seen.state in ("up", "ready", "done"):
            record.state = "up"
            node = self.agents[record.agent].place.node
            effects.append(e.Record("rank_up", who | {"pid": seen.pid, "node": node}))
        if record.state == "up" and seen.state in ("ready", "done"):
            record.state = "running" if self.phase == "running" else "ready"
            effects.append(e.Record("rank_ready", who | {"setup_s": round(seen.setup_s, 3)}))
        if record.state in ("ready", "running") and seen.state == "done":
            record.state, record.sha256 = "done", seen.sha256
            if not self.outline.snapshots.enabled:
                record.safe = max(record.safe, self.outline.steps - 1)
            effects.append(e.Record("rank_done", who | {"finished": seen.finished, "sha256": seen.sha256}))
        if seen.state in ("failed", "gone") and record.state not in ("failed", "halting"):
            record.state = "failed"
            node = self.agents[record.agent].place.node
            failure = seen.failure or Failure(
                "exit", seen.role, seen.rank, node, message="it is gone, and its agent knows of no reason",
                generation=seen.generation,
            )  # fmt: skip
            effects += self.coordinator.failed(failure, now)
        if record.state == "running" and (
            slow := self._stragglers.seen(seen, now, collective=record.launch.collective)
        ):
            effects += self._slow(slow, now)
        return effects

    def _slow(self, slow: Failure, now: float) -> list[e.Effect]:
        effects: list[e.Effect] = [
            e.Record("straggler", {"role": slow.role, "rank": slow.rank, "message": slow.message})
        ]
        return effects + self.coordinator.suspected(slow, now)

    def run_if_ready(self, now: float) -> list[e.Effect]:
        if self.phase != "starting" or self.coordinator.recovery is not None:
            return []
        if any(r.state not in ("ready", "done", "running") for r in self.ranks.values()):
            return []
        self.phase = "running"
        self.hangs.begin(now)
        for record in self.ranks.values():
            record.state = "running" if record.state == "ready" else record.state
        return [e.Record("job_running", {"at": now})]

    def _agent_stopped(self, agent: AgentRecord, now: float) -> list[e.Effect]:
        if agent.state in ("stopped", "lost"):
            return []
        if self.phase != "stopping":
            return self._agent_lost(agent.place.agent, agent.incarnation, "it has ended itself", False, now)
        agent.state = "stopped"
        return [e.Record("agent_stopped", {"agent": agent.place.agent}), *self._end_if_gone()]

    def _agent_lost(
        self, name: str, incarnation: int, why: str, node_lost: bool, now: float, silent_s: float = 0.0
    ) -> list[e.Effect]:
        agent = self.agents.get(name)
        if agent is None or incarnation != agent.incarnation or agent.state in ("stopped", "wanted"):
            return []
        if agent.state == "lost":
            if not node_lost or agent.node_lost:
                return []
            agent.node_lost = True
            return [e.Record("node_lost", {"agent": name, "incarnation": incarnation, "node": agent.place.node})]
        agent.state, agent.node_lost, agent.report = "lost", node_lost, None
        node = agent.place.node
        data = {"agent": name, "incarnation": incarnation, "node": node, "why": why, "node_lost": node_lost}
        on_it = [key for key, record in self.ranks.items() if record.agent == name]
        left = agent.leaving and self.coordinator.brings_back(on_it)
        agent.leaving = False
        effects: list[e.Effect] = [e.Record("agent_left", data) if left else e.Record("agent_lost", data)]
        if self.phase == "stopping":
            return effects + self._end_if_gone()
        if not on_it or left:
            return effects  # all that is lost is the copies it had
        for record in self.ranks.values():
            if record.agent == name and record.state != "halting":
                record.state = "failed"
        cause: failures.Cause = "node_lost" if node_lost else "agent_lost"
        message = f"{why}; its ranks were {', '.join(f'{role}/{n}' for role, n in on_it)}"
        return effects + self.coordinator.failed(Failure(cause, node=node, message=message), now, silent_s)

    def _start_failed(self, why: str, agents: tuple[str, ...], now: float) -> list[e.Effect]:
        if self.never_started and self.coordinator.recovery is None:
            for record in self.agents.values():
                record.state = "lost"
            return self.stop("failed", why, 0.0, now)
        effects: list[e.Effect] = []
        for name in agents:
            effects += self._agent_lost(name, self.agents[name].incarnation, why, False, now)
        return effects

    def _silent(self, now: float) -> list[e.Effect]:
        effects: list[e.Effect] = []
        limit = min(SILENCE_S, self.outline.lease_s / 2)
        for name, agent in self.agents.items():
            if agent.state == "up" and now > agent.heard + limit:
                why = f"the agent has not been heard of for {limit:g} s"
                effects.append(e.KillAgent(name, agent.incarnation))
                effects += self._agent_lost(name, agent.incarnation, why, False, now, now - agent.heard)
        return effects

    def why_not(self, agent: str, role: str, rank: int) -> str:
        """Why a failure of this agent, or of this rank, would hit nobody who has something to do; "" if it would."""
        record = self.ranks.get((role, rank))
        home = self.agents.get(record.agent if record is not None else agent)
        if home is None or home.state != "up":
            return f"agent {agent or home.place.agent if home else agent} is {home.state if home else 'unknown'}"
        if record is not None and (record.state not in ALIVE or record.finished >= self.outline.steps - 1):
            return f"{role}/{rank} is {record.state}"
        return ""

    def _inject(self, inject: m.Inject, agent: str) -> list[e.Effect]:
        record = self.ranks.get((inject.role, inject.rank))
        home = self.agents.get(record.agent if record is not None else agent)
        if home is None or home.state != "up":
            return []
        who = f"{inject.role}/{inject.rank}" if record is not None else home.place.agent
        note = e.Record("injected", {"kind": inject.kind, "target": who})
        return [note, e.ToAgent(home.place.agent, home.incarnation, inject)]

    # ------------------------------------------------------------------------------------------ commits and snapshots

    def _commit(self) -> list[e.Effect]:
        committed = min((r.safe for r in self.ranks.values()), default=-1)
        effects: list[e.Effect] = []
        if committed > self.committed and self.phase == "running":
            self.committed = committed
            effects.append(e.Committed(committed))
        if self.phase == "running":
            ahead = max(self.outline.grant, 2 * self.outline.snapshots.every if self.outline.snapshots.enabled else 1)
            # Ranks keep their lines of metrics in memory until these are written.
            unwritten = max(ahead, LINES_AHEAD) + self.outline.metrics_every
            snapshots = min(self.outline.steps - 1, self.committed + ahead)
            until = min(snapshots, self.published + unwritten, self.released)
            self._limited = until < snapshots
            if until - self.granted >= max(1, ahead // 4) or until in (self.outline.steps - 1, self.released):
                self.granted = max(self.granted, until)
        return effects

    def _withdraw(self, teller: tuple[str, int], told: Sequence[m.Persisted]) -> None:
        """What an agent has told of and tells of no more it has removed from the disk: it has given that set up."""
        there = {(part.step, part.role, part.rank, part.attempt) for part in told}
        for step, parts in self._parts.items():
            for key, (by, part) in list(parts.items()):
                if by == teller and (step, *key, part.attempt) not in there:
                    del parts[key]

    def _persisted(self, teller: tuple[str, int], part: m.Persisted, now: float) -> list[e.Effect]:
        rank = self.ranks.get((part.role, part.rank))
        if rank is None or (part.timeline, part.generation) != (self.timeline, rank.launch.generation):
            return []  # made before the rank, or the whole job, went back
        if part.step <= self.persisted:
            return []
        parts = self._parts.setdefault(part.step, {})
        parts[part.role, part.rank] = teller, part
        if len(parts) < len(self.ranks) or self._completing >= part.step or self.coordinator.seeks_origin:
            return []
        every = self.outline.metrics_every
        if self.coordinator.busy or self._held:
            self._whole_since[part.step] = now  # what is missing will be told again, or written
        since = self._whole_since.setdefault(part.step, now)
        if self.published < (part.step + 1) // every * every - 1 and now < since + LINES_S:
            return []  # who goes on from the disk knows nothing of the lines before
        self._completing = part.step
        return [e.CompleteSet(part.step, tuple(parts[key][1] for key in self.ranks))]

    def _set_completed(self, step: int, error: str) -> list[e.Effect]:
        self._completing = -1
        if step <= self.persisted:
            return []  # a newer one was faster, which has removed what there was of this one
        if error:
            # Agents tell their parts again until the set is whole, so it is tried again.
            self._parts.pop(step, None)
            told, self._trouble[_SETS] = self._trouble.get(_SETS), error
            return [e.Record("snapshot_trouble", {"step": step, "message": error})] if error != told else []
        self._trouble.pop(_SETS, None)
        self.persisted = step
        self._parts = {at: parts for at, parts in self._parts.items() if at > step}
        self._whole_since = {at: since for at, since in self._whole_since.items() if at > step}
        return [e.Record("persisted", {"step": step})]

    def went_back(self, key: RankKey, step: int) -> None:
        """A rank starts again after `step`: its parts of later sets are void, and will be made again."""
        for at, parts in self._parts.items():
            if at > step:
                parts.pop(key, None)

    @property
    def held_back(self) -> bool:
        """Whether every rank waits at the end of its grant for a failure that a rehearsal is going to inject."""
        return self._limited and all(record.finished >= self.granted for record in self.ranks.values())

    def group(self, role: str, rank: int) -> tuple[RankKey, ...]:
        """The ranks that live and die with this one: see `JobView.group`."""
        return self._groups.get(role, ((role, rank),))

    def remember(self, found: Iterable[Failure]) -> None:
        """Failures that a decision has been made about; the oldest are forgotten."""
        self.failures += found
        del self.failures[:-MOST_FAILURES]

    def attempted(self, attempt: Attempt) -> None:
        """A recovery begins; the oldest ones, which no budget counts any more, are forgotten."""
        self.attempts.append(attempt)
        del self.attempts[:-MOST_ATTEMPTS]

    def roll_back(self, origin: Origin) -> None:
        """The whole job goes on from `origin`: a new timeline, in which nothing after it has happened."""
        self.timeline += 1
        self.origin = origin
        self.committed = self.granted = self.persisted = origin.step
        self._parts.clear()
        self._whole_since.clear()
        self._completing = -1
        for record in self.ranks.values():
            record.finished = record.safe = origin.step

    # --------------------------------------------------------------------------------------------------------- orders

    def _command(self, now: float) -> list[e.Effect]:
        """What every agent has to be told now."""
        effects: list[e.Effect] = []
        if self.phase in ("new", "ended"):
            return effects
        epoch = self.outline.epoch
        if self.phase == "stopping":
            stop = m.Stop(epoch, self.grace_s, self.message)
            for agent in self.agents.values():
                if agent.state in ("up", "starting"):
                    effects += self._commands.send(agent, stop, now)
            return effects
        advance = self._advance()
        here: dict[str, list[RankRecord]] = {}
        for record in self.ranks.values():
            here.setdefault(record.agent, []).append(record)
        self._wiring.turn(self.ranks, self.agents, here)
        for name, agent in self.agents.items():
            if agent.state != "up":
                continue
            effects += self._commands.send(agent, advance, now, KEEPALIVE_S)
            if agent.report is None or agent.report.epoch < epoch:
                continue  # what it runs is not known yet; it answers the first Advance of an epoch at once
            ranks = here.get(name, [])
            if halts := halt_of(agent, ranks, self.ranks):
                effects += self._commands.send(agent, m.Halt(epoch, halts), now)
            if launches := launch_of(agent, ranks):
                effects += self._commands.send(agent, m.Launch(epoch, self.timeline, launches), now)
            if agent.leaving and not ranks and self.coordinator.recovery is None:
                effects += self._commands.send(agent, m.Stop(epoch, 0.0, "it leaves, and has no ranks any more"), now)
            if (wire := self._wiring.message(agent)) is not None:
                effects += self._commands.send(agent, wire, now)
        return effects

    def _advance(self) -> m.Advance:
        groups: dict[str, int] = {}
        if self.outline.snapshots.enabled:
            for (role, _), record in self.ranks.items():
                if role in self.collective:
                    groups[role] = min(record.safe, groups.get(role, record.safe))
        return m.Advance(
            self.outline.epoch, self.timeline, self.granted if self.phase == "running" else -1, self.committed,
            self.published, self.persisted, groups,
        )  # fmt: skip

    # ----------------------------------------------------------------------------------------------------------- view

    def warnings(self) -> tuple[str, ...]:
        """What is waited for right now: a recovery's delay, and what agents or the master have trouble with."""
        delay = [self.coordinator.waiting] if self.coordinator.waiting else []
        return (*delay, *(f"{who}: {text}" if who else text for who, text in self._trouble.items()))

    def view(self, now: float) -> JobView:
        """The job as diagnosers and levels see it."""
        ranks = tuple(
            RankView(
                role, n, self.agents[record.agent].place.node, record.state, record.finished,
                record.launch.generation, record.safe,
            )
            for (role, n), record in self.ranks.items()
        )  # fmt: skip
        nodes = tuple(
            NodeState(a.place.node, name, a.state in ("starting", "up") or not a.node_lost)
            for name, a in self.agents.items()
        )
        return JobView(
            self.outline.name, self.outline.epoch, self.committed, ranks, self.collective, self.outline.stateful,
            nodes, self.persisted, tuple(self.failures), tuple(self.attempts), now,
        )  # fmt: skip


def _place(report: m.RankReport) -> tuple[object, ...]:
    return (report.state, report.finished, report.step, report.op, report.phase, report.edge)
