"""Recovery: from failures to a plan, and the plan carried out step by step, in a machine that may be replayed.

failure ─▶ diagnosis ─▶ ladder ─▶ halting ─▶ (origin) ─▶ (placing) ─▶ (agents) ─▶ launching ─▶ recovered
              ▲                       │ a failure meanwhile, or a phase that cannot go on │
              └───────────────────────┴── merged into a new plan, or the next level ◀────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rolemesh.api import failures
from rolemesh.api.failures import Attempt, Failure, RecoveryPlan
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.ladder import Proposal, diagnosed, propose
from rolemesh_durable.protocol.master.records import AgentRecord, RankKey, Recovery
from rolemesh_durable.protocol.master.resume import Origin, Resume, resume_points

if TYPE_CHECKING:
    from rolemesh_durable.protocol.master.machine import MasterMachine

__all__ = ["Coordinator"]

REPORTED_S = 1.0
"""A report that comes so long after something happened was sent after it: messages are under way for less."""
ECHO_S = 0.2
"""How long a broken connection waits for the death behind it, which is often seen a moment later."""
LEAVING = "leaving"
"""In the place of a level's name: ranks are brought away from an agent that was told to end."""
ASK_AGAIN_S = 2.0
"""How often a place is looked for while there is none."""


class Coordinator:
    """Carries out one recovery at a time; failures that come meanwhile are merged into it."""

    def __init__(self, machine: MasterMachine) -> None:
        self.machine = machine
        self.recovery: Recovery | None = None
        self.count = 0
        self.latest: list[Failure] = []
        self._were: dict[RankKey, int] = {}
        self._regaining: list[int] = []
        self._pending: list[Failure] = []
        self._since = 0.0

    @property
    def busy(self) -> bool:
        """Whether something has failed and has not been brought back yet."""
        return self.recovery is not None or bool(self._pending)

    @property
    def seeks_origin(self) -> bool:
        """Whether it is being looked for where the job goes back to: no other set may become whole meanwhile."""
        return self.recovery is not None and self.recovery.phase == "origin"

    @property
    def waiting(self) -> str:
        """What a recovery waits for before anything starts, in words; "" if it does not."""
        at, left = self.recovery, 0.0
        if at is None or at.phase != "halting" or (left := at.not_before - self.machine.now) <= 0:
            return ""
        who = ", ".join(f"{role}/{rank}" for role, rank in at.restart)
        return f"recovery {at.number} of {who} waits {left:.0f} of {at.plan.delay_s:.3g} s before attempt {at.attempt}"

    # ------------------------------------------------------------------------------------------------------- failures

    def failed(self, failure: Failure, now: float, silent_s: float = 0.0) -> list[e.Effect]:
        """Take note of a failure, which has lasted for `silent_s` unnoticed; `step` acts on it."""
        self.remember(failure, now)
        data = {"failure": msgspec.to_builtins(failure), "silent_s": round(silent_s, 3), "at": now}
        return [e.Record("failure", data)]

    def remember(self, failure: Failure, now: float) -> None:
        """As `failed`, for a failure that is in the journal already."""
        if not self._pending:
            self._since = now
        self._pending.append(failure)

    def suspected(self, failure: Failure, now: float) -> list[e.Effect]:
        """A rank that works, badly: only if a diagnoser says that something is to be done about it, it has failed."""
        machine = self.machine
        verdict = diagnosed(failure, machine.view(now), machine.diagnosers)
        if verdict is None or self.busy or not machine.ladder:
            return []
        machine.ranks[failure.role, failure.rank].state = "failed"
        return self.failed(failure, now)

    def step(self, now: float) -> list[e.Effect]:
        """Whatever can be done now."""
        effects: list[e.Effect] = []
        if self._pending and not (all(map(failures.is_echo, self._pending)) and now < self._since + ECHO_S):
            found, self._pending = self._pending, []
            effects += self._plan(found, 0, now)
        effects += self._regained(now)
        while self.recovery is not None and (more := self._go_on(self.recovery, now)) is not None:
            effects += more
        return effects

    def _plan(self, found: list[Failure], floor: int, now: float, why: str = "") -> list[e.Effect]:
        """A new plan, which takes in what the present one has not done yet; `why` that one has failed, if it has."""
        machine, before = self.machine, self.recovery
        proposal = propose(found, machine.view(now), machine.ladder, machine.diagnosers, floor)
        escalated = floor > 0  # the failures are those of `before`, and their levels have been asked anew
        machine.remember(found if not escalated else ())
        self.latest = list(found)
        if proposal.plan is None:
            self.recovery = None
            self._close_attempt("failed", now)
            first = failures.primary(found)
            what = failures.describe(first)
            trail = [*proposal.trail, *([f"  {before.plan.level}: {why}"] if before is not None and why else [])]
            effects: list[e.Effect] = []
            if machine.ladder:
                effects.append(e.Record("ladder_exhausted", {"trail": trail}))
                what += "\n" + "\n".join(f"  {line}" for line in trail[1:])
            return effects + machine.stop("failed", what, 0.0, now)
        plan = proposal.plan
        if before is not None:
            plan = self._merged(plan, before, now)
            if not escalated:
                plan = _with_limits(plan, before, now)
                found = [*before.failures, *found]
        return self._begin(plan, found, proposal, now)

    def leaves(self, agent: AgentRecord, ranks: Sequence[RankKey], now: float) -> list[e.Effect]:
        """An agent was told to end: bring these ranks of it elsewhere. No level is asked, and none is charged for it.

        Without copies on other nodes its next incarnation on the same node has them.
        """
        machine, before, place = self.machine, self.recovery, agent.place
        if not machine.ladder:
            message = "its agent was told to end, and the job has no failover level"
            return self.failed(Failure("agent_lost", node=place.node, message=message), now)
        restart = _ordered(machine.ranks, {mate for key in ranks for mate in machine.group(*key)})
        reason = f"agent {place.agent} was told to end"
        away = (place.node,) if machine.outline.snapshots.replicas else ()
        plan = RecoveryPlan(LEAVING, restart, avoid=away, reason=reason)
        found: list[Failure] = []
        if before is not None:
            level = before.plan.level if before.failures else LEAVING
            plan = _with_limits(msgspec.structs.replace(self._merged(plan, before, now), level=level), before, now)
            found = before.failures
        return self._begin(plan, found, Proposal(plan, (reason,), (), attempt=0), now)

    def brings_back(self, keys: Sequence[RankKey]) -> bool:
        """Whether the recovery that is under way starts all of these ranks again, and has not begun to."""
        at = self.recovery
        return not keys or (at is not None and at.phase != "launching" and set(keys) <= set(at.restart))

    def _merged(self, plan: RecoveryPlan, before: Recovery, now: float) -> RecoveryPlan:
        """A plan that takes in what `before` has not brought back yet, which is given up."""
        machine = self.machine
        self._close_attempt("failed", now)
        left = [key for key in before.restart if machine.ranks[key].state not in ("ready", "running", "done")]
        everything = "disk" in (plan.source, before.plan.source) and bool(left)
        source: Literal["memory", "disk"] = "disk" if plan.source == "disk" or everything else "memory"
        wanted = {mate for key in (*plan.restart, *left) for mate in machine.group(*key)}
        restart = tuple(machine.ranks) if source == "disk" else _ordered(machine.ranks, wanted)
        return msgspec.structs.replace(plan, restart=restart, source=source)

    def _begin(self, plan: RecoveryPlan, found: list[Failure], proposal: Proposal, now: float) -> list[e.Effect]:
        machine = self.machine
        self.count += 1
        self.recovery = Recovery(
            self.count, plan, found, now, since=now, not_before=now + plan.delay_s, attempt=proposal.attempt
        )
        for key in plan.restart:
            rank = machine.ranks[key]
            rank.state = "halting"
            self._were[key] = max(rank.finished, self._were.get(key, -1))
        reached = tuple((*key, self._were[key]) for key in plan.restart)
        if proposal.attempt:
            machine.attempted(Attempt(plan.level, now, plan.restart, plan.reason, reached=reached))
        causes: list[str] = list(dict.fromkeys(failure.cause for failure in found))
        data = {
            "number": self.count,
            "attempt": proposal.attempt,
            "plan": msgspec.to_builtins(plan),
            "failures": [failures.describe(failure) for failure in found],
            "were": reached,
            "causes": causes or [plan.level],
            "trail": list(proposal.trail),
            "at": now,
        }
        return [e.Record("recovery_planned", data)]

    def again(self, number: int, plan: RecoveryPlan, attempt: int, begun: float, now: float) -> None:
        """After replay: the recovery that the last master had begun at `begun` begins once more."""
        self.count = number
        until = begun + plan.delay_s
        self.recovery = Recovery(number, plan, [], now, since=now, not_before=until, attempt=attempt)
        for key in plan.restart:
            self.machine.ranks[key].state = "halting"

    def replayed(self, kind: str, data: dict[str, Any]) -> None:
        """After replay: what is still to be regained, from a recovery's records."""
        if kind == "recovery_planned":
            for role, rank, finished in data["were"]:
                self._were[role, rank] = max(finished, self._were.get((role, rank), -1))
        elif kind == "recovered":
            self._regaining.append(data["number"])
        elif kind == "regained":
            self._regaining.remove(data["number"])
            if not self._regaining:
                self._were.clear()

    def kept(self) -> tuple[list[tuple[str, int, int]], list[int]]:
        """For a checkpoint: where ranks had been, and the recoveries that have not got them there again."""
        return [(*key, step) for key, step in self._were.items()], list(self._regaining)

    def restored(self, count: int, reached: list[tuple[str, int, int]], regaining: list[int]) -> None:
        """From a checkpoint: what `kept` has said, and the number of recoveries."""
        self.count, self._regaining = count, list(regaining)
        self._were = {(role, rank): step for role, rank, step in reached}

    def _close_attempt(self, outcome: Any, now: float) -> None:
        attempts = self.machine.attempts
        if attempts and not attempts[-1].outcome:
            attempts[-1] = msgspec.structs.replace(attempts[-1], outcome=outcome, ended_at=now)

    def _escalate(self, why: str, now: float) -> list[e.Effect]:
        """The plan has failed: the next level's turn, for the same failures."""
        recovery = self.recovery
        assert recovery is not None
        machine = self.machine
        names = [rung.name for rung in machine.ladder]
        effects: list[e.Effect] = [
            e.Record(
                "recovery_failed", {"number": recovery.number, "level": recovery.plan.level, "why": why, "at": now}
            )
        ]
        if recovery.plan.level == LEAVING:
            floor, what = 0, f"its agent was told to end, and it could not be brought elsewhere: {why}"
        else:
            floor = names.index(recovery.plan.level) + 1 if recovery.plan.level in names else len(names)
            what = "it was being brought back when the master died"
        found = recovery.failures or [Failure("exit", *key, message=what) for key in recovery.restart[:1]]
        return effects + self._plan(found, floor, now, why)

    # ---------------------------------------------------------------------------------------------------- carrying out

    def _go_on(self, recovery: Recovery, now: float) -> list[e.Effect] | None:
        """The next phase's effects, or None if there is something to wait for."""
        match recovery.phase:
            case "halting":
                return self._halting(recovery, now)
            case "origin":
                return None
            case "placing":
                return self._placing(recovery, now)
            case "agents":
                return self._agents(recovery, now)
            case "launching":
                return self._launching(recovery, now)

    def _halting(self, recovery: Recovery, now: float) -> list[e.Effect] | None:
        reported: dict[str, dict[RankKey, m.RankReport]] = {}
        for key in recovery.restart:
            name = self.machine.ranks[key].agent
            if name not in reported and (report := self.machine.agents[name].report) is not None:
                reported[name] = {(seen.role, seen.rank): seen for seen in report.ranks}
            if not self._gone(key, reported.get(name, {}).get(key)):
                return None
        if now < recovery.not_before:
            return None
        if recovery.plan.source == "disk":
            self._enter(recovery, "origin", now)
            return [e.FindOrigin()]
        self._enter(recovery, "placing", now)
        return []

    def _gone(self, key: RankKey, seen: m.RankReport | None) -> bool:
        """Whether no process of this rank, of which `seen` is its agent's report, is left, and none can come."""
        rank = self.machine.ranks[key]
        agent = self.machine.agents[rank.agent]
        if agent.state in ("lost", "stopped", "wanted", "starting"):
            return True  # its ranks die with an agent, and a new incarnation has only those that it is told to start
        return seen is not None and seen.state == "gone" and seen.generation >= rank.launch.generation

    def answered(self, event: e.Replanned | e.OriginFound, now: float) -> list[e.Effect]:
        """The shell has found an origin, or places."""
        recovery = self.recovery
        if recovery is None:
            return []
        if isinstance(event, e.OriginFound):
            if recovery.phase != "origin":
                return []
            effects: list[e.Effect] = [e.Record("snapshot_damaged", {"message": text}) for text in event.damaged]
            lost_steps = max((r.finished for r in self.machine.ranks.values()), default=-1) - event.step
            self.machine.roll_back(Origin(event.folder, event.step))
            self._enter(recovery, "placing", now)
            data = {"step": event.step, "folder": event.folder, "lost_steps": max(0, lost_steps)}
            return [*effects, e.Record("rolled_back", data | {"timeline": self.machine.timeline})]
        if recovery.phase != "placing":
            return []
        if event.moves is None:
            return self._no_place(recovery, event.why, now)
        return self._moved(recovery, event, now)

    def _placing(self, recovery: Recovery, now: float) -> list[e.Effect] | None:
        machine = self.machine
        avoid = set(recovery.plan.avoid)
        avoid |= {a.place.node for a in machine.agents.values() if a.node_lost}
        misplaced = any(machine.agents[machine.ranks[key].agent].place.node in avoid for key in machine.ranks)
        if not misplaced:
            self._enter(recovery, "agents", now)
            return []
        lost_with = {k for k, r in machine.ranks.items() if machine.agents[r.agent].place.node in avoid}
        if not lost_with <= set(recovery.restart):
            return self._escalate(f"ranks on {', '.join(sorted(avoid))} are not part of the plan", now)
        if now < recovery.asked + ASK_AGAIN_S:
            return None
        recovery.asked = now
        return [e.Replan(tuple(sorted(avoid)))]

    def _no_place(self, recovery: Recovery, why: str, now: float) -> list[e.Effect]:
        drained = {agent.place.node for agent in self.machine.agents.values() if agent.leaving}
        if drained & set(recovery.plan.avoid):
            # Its next incarnation is better than none: the node may stay.
            avoid = tuple(node for node in recovery.plan.avoid if node not in drained)
            recovery.plan = msgspec.structs.replace(recovery.plan, avoid=avoid)
            recovery.asked = float("-inf")
            return [e.Record("suspects_used", {"number": recovery.number, "nodes": sorted(drained), "missing": why})]
        waited = now - recovery.since
        if waited >= recovery.plan.wait_s:
            machine = self.machine
            dead = {agent.place.node for agent in machine.agents.values() if agent.node_lost}
            suspect = [node for node in recovery.plan.avoid if node not in dead]
            if suspect and machine.ladder and recovery.plan.level == machine.ladder[-1].name:
                # Better on a node that may be at fault than not at all.
                recovery.plan = msgspec.structs.replace(recovery.plan, avoid=())
                recovery.asked = float("-inf")
                return [e.Record("suspects_used", {"number": recovery.number, "nodes": suspect, "missing": why})]
            limit = f"; waited {recovery.plan.wait_s:g} s for one" if recovery.plan.wait_s else ""
            return self._escalate(f"there is no place: {why}{limit}", now)
        if why == recovery.waiting:
            return []
        recovery.waiting = why
        data = {"number": recovery.number, "missing": why, "wait_s": recovery.plan.wait_s}
        return [e.Record("waiting_for_nodes", data)]

    def _moved(self, recovery: Recovery, plan: e.Replanned, now: float) -> list[e.Effect]:
        machine = self.machine
        assert plan.moves is not None
        for place in plan.places:
            known = machine.agents.get(place.agent)
            if known is None:
                machine.agents[place.agent] = AgentRecord(place)
            else:
                known.place = place
        for move in plan.moves:
            rank = machine.ranks[move.role, move.rank]
            rank.agent = move.agent
            rank.launch = move.applied(rank.launch)
        self._enter(recovery, "agents", now)
        data = {"moves": msgspec.to_builtins(plan.moves), "places": msgspec.to_builtins(plan.places)}
        return [e.Record("replanned", data)]

    def _agents(self, recovery: Recovery, now: float) -> list[e.Effect] | None:
        machine = self.machine
        needed = {machine.ranks[key].agent for key in recovery.restart}
        missing = [
            name
            for name, agent in machine.agents.items()
            if name in needed and (agent.state in ("wanted", "lost") or agent.leaving)
        ]
        if missing:
            return machine.start_agents(missing, now)
        if any(machine.agents[name].state != "up" for name in needed):
            if now > recovery.since + machine.outline.start_timeout_s:
                return self._escalate("the agents did not come up in time", now)
            return None
        known = [a for a in machine.agents.values() if a.state == "up"]
        if any(a.report is None or a.report.epoch < machine.outline.epoch for a in known):
            return None  # what the agents hold is not known yet
        return self._launch(recovery, now)

    def _launch(self, recovery: Recovery, now: float) -> list[e.Effect] | None:
        machine = self.machine
        points = self._points(recovery)
        if isinstance(points, str):
            up = [agent for agent in machine.agents.values() if agent.state == "up"]
            if machine.outline.snapshots.replicas and any(a.heard < recovery.since + REPORTED_S for a in up):
                return None  # a copy may have been made that its holder's newest report does not know yet
            return self._escalate(points, now)
        started: list[dict[str, Any]] = []
        for key, point in points.items():
            rank = machine.ranks[key]
            rank.launch = msgspec.structs.replace(
                rank.launch,
                generation=rank.launch.generation + 1,
                resume=point.step,
                restore=point.restore,
                replica=self._address(point.replica),
                origin=machine.origin.folder,
                origin_step=machine.origin.step,
            )
            rank.state, rank.report, rank.pid, rank.sha256 = "starting", None, 0, ""
            rank.finished = point.step
            rank.safe = min(rank.safe, point.step)  # what it is restored from may have no replica yet
            machine.went_back(key, point.step)
            launch = rank.launch
            started.append(
                {
                    "role": launch.role, "rank": launch.rank, "generation": launch.generation, "agent": rank.agent,
                    "resume": launch.resume, "restore": launch.restore, "replica": launch.replica,
                }
            )  # fmt: skip
        self._enter(recovery, "launching", now)
        data = {"number": recovery.number, "ranks": started, "at": now}
        return [e.Record("recovery_launched", data)]

    def _address(self, name: str) -> str:
        """Where the agent that holds a replica is reached, "" for none."""
        agent = self.machine.agents.get(name)
        return agent.report.address if agent is not None and agent.report is not None else ""

    def _points(self, recovery: Recovery) -> dict[RankKey, Resume] | str:
        machine = self.machine
        groups = list(dict.fromkeys(machine.group(*key) for key in recovery.restart))
        if recovery.plan.source == "disk":
            restore: Any = "disk" if machine.origin.step >= 0 else "none"
            return {key: Resume(machine.origin.step, restore) for group in groups for key in group}
        held: dict[RankKey, dict[str, tuple[int, ...]]] = {}
        copies: dict[RankKey, dict[str, tuple[int, ...]]] = {}
        for name, agent in machine.agents.items():
            if agent.state != "up" or agent.report is None or agent.report.timeline != machine.timeline:
                continue
            for seen in agent.report.ranks:
                if seen.state == "gone" and machine.ranks[seen.role, seen.rank].agent == name:
                    held.setdefault((seen.role, seen.rank), {})[name] = seen.snapshots
            for stored in agent.report.stored:
                found = (copies if stored.copy else held).setdefault((stored.role, stored.rank), {})
                found[name] = tuple(sorted({*found.get(name, ()), *stored.steps}))
        agents = {key: rank.agent for key, rank in machine.ranks.items()}
        return resume_points(groups, held, copies, agents, machine.committed, machine.origin)

    def _launching(self, recovery: Recovery, now: float) -> list[e.Effect] | None:
        machine = self.machine
        late = [key for key in recovery.restart if machine.ranks[key].state not in ("ready", "running", "done")]
        if late:
            if now > recovery.since + machine.outline.start_timeout_s:
                names = ", ".join(f"{role}/{rank}" for role, rank in late)
                return self._escalate(f"{names} did not get ready in {machine.outline.start_timeout_s:g} s", now)
            return None
        self.recovery = None
        self._regaining.append(recovery.number)
        self._close_attempt("recovered", now)
        data = {
            "number": recovery.number,
            "level": recovery.plan.level,
            "restarted": [f"{role}/{rank}" for role, rank in recovery.restart],
            "seconds": round(now - recovery.begun, 3),
            "at": now,
        }
        effects: list[e.Effect] = [e.Record("recovered", data)]
        if machine.phase == "starting":
            machine.deadline = now + machine.outline.start_timeout_s  # the others have waited for these
        if machine.phase == "starting" and all(r.state in ("ready", "done", "running") for r in machine.ranks.values()):
            effects += machine.run_if_ready(now)
        return effects

    def _regained(self, now: float) -> list[e.Effect]:
        """Whether the ranks that were started again are where they had been: then nothing more is lost."""
        if self.recovery is not None or not self._regaining:
            return []
        if any(self.machine.ranks[key].finished < step for key, step in self._were.items()):
            return []
        numbers, self._regaining = self._regaining, []
        self._were.clear()
        return [e.Record("regained", {"number": number, "at": now}) for number in numbers]

    def _enter(self, recovery: Recovery, phase: Any, now: float) -> None:
        recovery.phase, recovery.since = phase, now


def _with_limits(plan: RecoveryPlan, before: Recovery, now: float) -> RecoveryPlan:
    """A plan that avoids what `before` avoids, and waits no less."""
    return msgspec.structs.replace(
        plan,
        avoid=tuple(dict.fromkeys([*before.plan.avoid, *plan.avoid])),
        wait_s=max(before.plan.wait_s, plan.wait_s),
        delay_s=max(before.not_before - now, plan.delay_s),
    )


def _ordered(ranks: dict[RankKey, Any], wanted: set[RankKey]) -> tuple[RankKey, ...]:
    return tuple(key for key in ranks if key in wanted)
