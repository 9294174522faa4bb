"""The effect of each transition on a job's state: the only definition, for the master and for its successors."""

from __future__ import annotations

from typing import Literal

import msgspec

from rolemesh.api.failures import Attempt, Failure
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import state as st
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.clocks import by_another_clock
from rolemesh_durable.protocol.master.extension_record import ExtensionRecord
from rolemesh_durable.protocol.master.relayout import given_up, relayout
from rolemesh_durable.protocol.metrics.line_cuts import with_cut, with_end

__all__ = ["apply"]


def apply(state: st.JobState, happened: t.Transition, wall: float = 0.0) -> None:
    """Apply a transition to `state`. It happened at `wall`, by the wall clock."""
    match happened:
        case t.JobStarted() | t.MasterRecovered() | t.JobDetached() | t.JobRunning() | t.JobStopping() | t.JobEnded():
            _job(state, happened, wall)
        case t.JobFinishing(reason):
            state.finishing = reason
        case t.StopPoint():
            _stop(state, happened)
        case t.LinesCut(step, every):
            state.cuts = with_cut(state.cuts, (step, every), state.persisted)
        case t.LayoutChanged():
            relayout(state, happened)
        case t.AgentStarted(agent, incarnation, node, resources):
            st.place(state, AgentPlace(agent, node, dict(resources)))
            record = state.agents[agent]
            record.incarnation, record.state, record.node_lost = incarnation, "starting", False
            record.leaving = node in state.leaving
        case t.AgentUp(agent, pid=pid, host=host):
            state.never_started = False
            record = state.agents[agent]
            record.state, record.pid, record.host, record.orphans = "up", pid, host, False
        case t.AgentLost(agent, node_lost=node_lost):
            _gone(state.agents[agent], node_lost)
            if state.phase != "stopping":
                for rank in state.here.get(agent, ()):
                    _failed(rank)
        case t.AgentDied(agent, times=times, committed=committed):
            record = state.agents[agent]
            _gone(record, False)
            record.orphans, record.deaths, record.died_at = True, times, committed
        case t.AgentLeft(agent, node_lost=node_lost):
            _gone(state.agents[agent], node_lost)
        case t.NodeLost(agent):
            state.agents[agent].node_lost = True
        case t.AgentStopped(agent):
            state.agents[agent].state = "stopped"
        case t.ConnectionsRefused(agent, incarnation, count=count):
            state.refuse(agent, incarnation, count)
        case t.RankUp() | t.RankReady() | t.RankDone():
            if (rank := state.ranks[happened.ref]).launch.generation == happened.generation:
                _rank(state, rank, happened)
        case t.CheckpointPersisted(step):
            state.persisted = step
        case ExtensionRecord():
            happened.apply(state)
        case _:
            _recovery(state, happened)
    if (at := getattr(happened, "at", None)) is not None:
        state.last = (at, wall)


def _job(state: st.JobState, happened: t.Transition, wall: float) -> None:
    match happened:
        case t.JobStarted(clock=clock):
            state.phase, state.clock = "starting", clock
        case t.MasterRecovered(at=at, clock=clock):
            by_another_clock(state, clock, at, wall)
            state.never_started = False
            if (left := state.recovery) is not None:
                left.phase, left.since, left.asked, left.waiting = "halting", at, None, ""
                for key in left.restart:
                    state.ranks[key].state = "halting"
        case t.JobDetached():
            state.owned = False
        case t.JobRunning():
            state.phase = "running"
            for record in state.ranks.values():
                record.state = "running" if record.state == "ready" else record.state
        case t.JobStopping(status, message, grace_s, at):
            state.phase, state.status, state.message, state.grace_s = "stopping", status, message, grace_s
            _answered(state)
            if status == "failed":
                _close(state, "failed", at)
            state.recovery = None
        case t.JobEnded():
            state.phase = "ended"


def _stop(state: st.JobState, stop: t.StopPoint) -> None:
    state.stop = stop if stop.active else given_up(state.stop)
    if stop.active:
        # Ranks at a stop point have sent all lines up to it, whether they start again there or continue.
        state.cuts = with_end(state.cuts, stop.step, state.persisted)


def _recovery(state: st.JobState, happened: t.Transition) -> None:
    match happened:
        case t.FailureSeen(failure, at=at):
            state.open.append(failure)
            state.failed_at.append(at)
            if (record := state.ranks.get(failure.ref)) is not None:
                _failed(record)
        case t.RecoveryPlanned():
            _planned(state, happened)
        case t.RecoveryFailed(at=at):
            _close(state, "failed", at)
        case t.SuspectsUsed(_, nodes) if (now := state.recovery) is not None:
            now.plan = msgspec.structs.replace(now.plan, avoid=tuple(n for n in now.plan.avoid if n not in nodes))
        case t.RolledBack(step, folder):
            state.timeline += 1
            state.origin = st.Origin(folder, step)
            state.committed = state.persisted = step
            state.stop = state.stop if state.stop.active else t.NO_STOP
            if step < state.layout.step:  # the present ranks continue the lines of an earlier layout
                state.cuts = with_end(state.cuts, step, step)
            state.layout = state.layout.back_at(step)
            for record in state.ranks.values():
                record.finished = record.durable = step
        case t.RanksMoved(moves, places, plan, resources):
            state.plan, state.resources = plan, state.resources | resources
            for place in places:
                st.place(state, place)
            for move in moves:
                record = state.ranks[move.ref]
                record.agent, record.launch = move.agent, move.applied(record.launch)
                if (has := resources.get(move.role)) is not None:
                    amounts = {"cpus": has["cpu"], "memory_gb": has.get("memory_gb", 0.0)}
                    record.launch = msgspec.structs.replace(record.launch, **amounts)
            state.index()
        case t.RecoveryLaunched(_, ranks):
            for started in ranks:
                _launched(state, started)
            state.index()
            if state.recovery is not None and state.recovery.plan.avoid and state.stop.then == "move":
                state.stop = given_up(state.stop)  # no rank is left that could continue at its old step
        case t.Recovered(number, at=at):
            _close(state, "recovered", at)
            state.recovery = None
            state.regaining.append(number)
        case t.Regained(number):
            state.regaining.remove(number)
            if not state.regaining:
                state.reached.clear()


def _gone(record: st.AgentRecord, node_lost: bool) -> None:
    record.state, record.node_lost, record.report = "lost", node_lost, None
    record.orphans = False


def _failed(record: st.RankRecord) -> None:
    record.state = "failed" if record.state != "halting" else record.state


def _rank(state: st.JobState, record: st.RankRecord, happened: t.RankUp | t.RankReady | t.RankDone) -> None:
    match happened:
        case t.RankUp(pid=pid):
            record.state, record.pid = "up", pid
        case t.RankReady():
            record.state = "running" if state.phase == "running" else "ready"
        case t.RankDone(finished=finished, sha256=sha256, verdict=verdict):
            record.state, record.sha256, record.finished = "done", sha256, max(record.finished, finished)
            record.verdict = verdict
            record.durable = record.durable if state.snapshots else max(record.durable, state.end)


def _launched(state: st.JobState, started: t.Started) -> None:
    record, origin = state.ranks[started.ref], state.origin
    record.agent = started.agent
    record.launch = msgspec.structs.replace(
        record.launch, generation=started.generation, resume=started.resume, restore=started.restore,
        replica=started.replica, origin=origin.folder, origin_step=origin.step, layout=state.layout,
        calls=started.calls,
    )  # fmt: skip
    record.state, record.report, record.pid, record.sha256, record.verdict = "starting", None, 0, "", ""
    record.finished, record.calls = started.resume, max(record.calls, started.calls)
    record.durable = min(record.durable, started.resume)  # the snapshot that it is restored from may have no copy yet


def _planned(state: st.JobState, happened: t.RecoveryPlanned) -> None:
    plan = happened.plan
    _close(state, "failed", happened.at)
    earlier = state.recovery.failures if state.recovery is not None else []
    taken = _answered(state)
    state.recoveries = happened.number
    state.recovery = st.Recovery(
        happened.number, plan, [*earlier, *taken], happened.at, happened.attempt, happened.tried, since=happened.at
    )
    for key in plan.restart:
        state.ranks[key].state = "halting"
    for role, rank, step in happened.were:
        state.reached[RankRef(role, rank)] = max(step, state.reached.get(RankRef(role, rank), -1))
    if happened.attempt:
        causes = tuple(dict.fromkeys(failure.cause for failure in taken))
        at, were = happened.at, happened.were
        state.attempts.append(
            Attempt(plan.level, at, plan.restart, plan.reason, reached=were, avoid=plan.avoid, causes=causes)
        )
        del state.attempts[: -st.MOST_ATTEMPTS]


def _answered(state: st.JobState) -> list[Failure]:
    """Move the open failures to the answered ones, and return them."""
    taken, state.open = state.open, []
    state.latest = taken or state.latest
    state.failures = [*state.failures, *taken][-st.MOST_FAILURES :]
    state.failed_at = state.failed_at[-len(state.failures) :]
    return taken


def _close(state: st.JobState, outcome: Literal["recovered", "failed"], at: float) -> None:
    if state.attempts and not state.attempts[-1].outcome:
        state.attempts[-1] = msgspec.structs.replace(state.attempts[-1], outcome=outcome, ended_at=at)
