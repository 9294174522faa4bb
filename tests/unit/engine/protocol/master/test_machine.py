"""The master's machine, case by case; what it does among others is shown by ``tests/simulation``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.configs import in_master, master_config

from rolemesh.api.failures import Failure, JobView, RecoveryPlan
from rolemesh.api.observer import Event
from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_durable.extensions.shipped import SHIPPED
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import events as me
from rolemesh_durable.protocol.master.adoption import MOST_DEATHS
from rolemesh_durable.protocol.master.context import STOP_MARGIN_S
from rolemesh_durable.protocol.master.coordinator import LINES_S, SETTLE_S
from rolemesh_durable.protocol.master.ladder import LadderLevel
from rolemesh_durable.protocol.master.machine import OWNER_START_S, MasterMachine
from rolemesh_durable.protocol.master.progress import WARNED_S
from rolemesh_durable.protocol.master.replay import follow, replay
from rolemesh_durable.protocol.master.state import JobState, KeptJob
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

DRIVER = ("boot", 1, 1)


def job(ranks: int = 1, agents: int = 1, ladder: tuple[LadderLevel, ...] = (), **settings: Any) -> MasterMachine:
    """A job whose master has heard its agents; `agents` beyond `ranks` have none."""
    names = [f"a{i}" for i in range(agents)]
    launches: dict[str, tuple[m.RankLaunch, ...]] = dict.fromkeys(names, ())
    for i in range(ranks):
        launches[names[i % agents]] += (m.RankLaunch("work", i, ranks, i, ranks, 0),)
    graph = LogicalGraph("g", (OpCall(0, "work", "do", "work.do", None),), ())
    places = tuple(AgentPlace(name, f"n{i}", {"cpu": 1.0}) for i, name in enumerate(names))
    config = master_config(graph, launches, places, **{"snapshots": SnapshotPlan(enabled=False)} | settings)
    machine = MasterMachine(config, ladder, extensions=in_master(SHIPPED))
    machine.handle(me.Begin(), 0.0)
    for name in names:
        tell(machine, name, 0.1)
    return machine


def tell(
    machine: MasterMachine, agent: str, now: float, *ranks: m.RankReport, making: tuple[str, ...] = ()
) -> list[me.Effect]:
    """A report of an agent."""
    seq = int(now * 1000)
    node = machine.state.agents[agent].place.node
    incarnation = machine.state.agents[agent].incarnation
    report = m.Report(agent, incarnation, seq, node, "h", 1, "", 1, -1, ranks, (), (), (), "", 0, making)
    return machine.handle(me.FromAgent(agent, report), now)


def running(machine: MasterMachine, now: float = 1.0) -> None:
    for name, agent in machine.state.agents.items():
        here = [key for key, rank in machine.state.ranks.items() if rank.agent == agent.place.agent]
        tell(machine, name, now, *(m.RankReport(*key, 0, "up", 100) for key in here))
        tell(machine, name, now + 0.1, *(m.RankReport(*key, 0, "ready", 100) for key in here))
    assert machine.state.phase == "running"


def records(effects: list[me.Effect]) -> dict[str, dict[str, Any]]:
    return {effect.kind: effect.data for effect in effects if isinstance(effect, me.JournalEntry)}


def idle(machine: MasterMachine, since: float, until: float) -> dict[str, dict[str, Any]]:
    """A turn every half second, in which the agent reports; the records of all of them."""
    found: dict[str, dict[str, Any]] = {}
    for half in range(int(since * 2), int(until * 2) + 1):
        tell(machine, "a0", half / 2)
        found |= records(machine.handle(me.Tick(), half / 2))
    return found


def alone(machine: MasterMachine, since: float, until: float) -> dict[str, dict[str, Any]]:
    """As `idle`, without a word of anybody."""
    turns = [since, *(half / 2 for half in range(int(since * 2) + 1, int(until * 2) + 1)), until]
    return {kind: data for now in turns for kind, data in records(machine.handle(me.Tick(), now)).items()}


def test_an_owner_that_is_not_heard_of_ends_the_job_by_its_lease() -> None:
    machine = job(driver=DRIVER, lease_s=3.0)
    idle(machine, 0.5, 1.0)
    running(machine)
    machine.handle(me.OwnerSeen(), 2.0)
    assert "job_stopping" not in idle(machine, 2.0, 5.0)
    ended = idle(machine, 5.5, 5.5)["job_stopping"]
    assert ended["status"] == "interrupted"
    assert "driver" in ended["message"]


def test_a_driver_that_is_still_loading_has_longer() -> None:
    machine = job(driver=DRIVER, lease_s=3.0)
    idle(machine, 0.5, 1.0)
    running(machine)
    assert "job_stopping" not in idle(machine, 1.5, OWNER_START_S)
    assert "driver" in idle(machine, OWNER_START_S, OWNER_START_S + 0.5)["job_stopping"]["message"]


def test_a_master_that_has_stood_still_does_not_blame_its_driver() -> None:
    machine = job(driver=DRIVER, lease_s=3.0)
    idle(machine, 0.5, 1.0)
    running(machine)
    machine.handle(me.OwnerSeen(), 2.0)
    idle(machine, 1.5, 2.0)
    assert "job_stopping" not in idle(machine, 9.0, 11.0)
    assert "driver" in idle(machine, 11.5, 11.5)["job_stopping"]["message"]


def test_a_master_that_has_stood_still_takes_nobody_for_dead_late_or_hung() -> None:
    machine = job(ranks=2, hang_after_s=8.0)
    assert alone(machine, 0.5, 3.0) == {}
    assert set(alone(machine, 70.0, 70.0)) == set(), "agents that it could not hear, ranks that it could not see start"
    running(machine, 70.5)
    assert set(idle(machine, 100.0, 106.0)) == set(), "ranks that it could not see move"
    assert "hang" in idle(machine, 106.5, 113.0)
    machine = job(ranks=2)
    assert alone(machine, 0.5, 5.0) == {}
    assert "agent_died" in alone(machine, 70.0, 70.5), "what was heard before, and after, counts"


def test_a_detached_job_outlives_its_owner() -> None:
    machine = job(driver=DRIVER, lease_s=3.0)
    idle(machine, 0.5, 1.0)
    running(machine)
    assert "job_detached" in records(machine.handle(me.Disown(), 2.0))
    assert "job_stopping" not in idle(machine, 2.0, 40.0)


def test_agents_that_never_confirm_do_not_keep_the_job_alive() -> None:
    machine = job()
    machine.handle(me.StopAsked("enough"), 1.0)
    assert machine.state.phase == "stopping"
    alone(machine, 1.0, 1.9 + STOP_MARGIN_S)
    effects = machine.handle(me.Tick(), 1.0 + 1.0 + STOP_MARGIN_S)
    assert me.End("interrupted", "enough") in effects


def test_a_job_waits_for_the_exit_of_its_ranks_and_warns_when_their_logs_say_what_they_wait_for() -> None:
    machine = job(steps=1)
    running(machine)
    tell(machine, "a0", 1.4, m.RankReport("work", 0, 0, "done", 100, finished=0))
    machine.handle(me.Published(0), 1.5)
    assert (machine.state.phase, machine.state.status) == ("stopping", "done")
    exits = m.RankReport("work", 0, 0, "ending", 100, finished=0)
    warned = []
    for now in range(9, 30):  # its teardown has taken longer than the grace
        effects = tell(machine, "a0", float(now), exits) + machine.handle(me.Tick(), now + 0.5)
        assert not [effect for effect in effects if isinstance(effect, me.End)], now
        warned += [now] if machine.warnings() else []
    assert warned == list(range(14, 30)), "not before a process has taken 5 s to end"


def test_how_far_an_environment_is_is_recorded_once_per_news() -> None:
    machine = job()
    told = [tell(machine, "a0", 1.0 + i, making=making) for i, making in enumerate([("x",), ("x", "y"), ("y",), ()])]
    assert [records(effects).get("environment") for effects in told] == [
        {"agent": "a0", "node": "n0", "message": "x"},
        {"agent": "a0", "node": "n0", "message": "y"},
        None,
        None,
    ]


def test_a_job_whose_ranks_do_not_get_ready_in_time_fails_and_names_them() -> None:
    machine = job(ranks=2)
    assert idle(machine, 0.5, 59.5) == {}
    stopping = alone(machine, 60.0, 60.0)["job_stopping"]
    assert stopping["status"] == "failed"
    assert "work/0 (starting), work/1 (starting)" in stopping["message"]
    assert "start_timeout_s" in stopping["message"]


def test_a_job_that_has_failed_for_good_ends_when_the_lines_of_finished_steps_are_written_or_a_moment_later() -> None:
    failed = m.RankReport("work", 0, 0, "failed", 100, failure=Failure("exit", "work", 0, exit_code=1), finished=3)
    for written in (True, False):
        machine = job()
        running(machine)
        assert "job_stopping" not in records(tell(machine, "a0", 1.3, failed))
        if written:
            assert "job_stopping" not in records(machine.handle(me.Published(2), 1.4))
            assert "job_stopping" not in records(machine.handle(me.Published(3), 1.45))
            effects = machine.handle(me.Tick(), 1.31 + SETTLE_S)
        else:
            assert "job_stopping" not in records(machine.handle(me.Tick(), 1.3 + SETTLE_S))
            effects = machine.handle(me.Tick(), 1.31 + LINES_S)
        assert records(effects)["job_stopping"]["status"] == "failed"


def test_a_step_is_committed_when_every_rank_has_finished_it_and_no_rank_may_run_far_ahead() -> None:
    machine = job(ranks=2)
    running(machine)
    effects = tell(machine, "a0", 2.0, *(m.RankReport("work", n, 0, "ready", 100, finished=3 - n) for n in (0, 1)))
    assert [e.step for e in effects if isinstance(e, me.Committed)] == [2]
    (advance,) = [e.message for e in effects if isinstance(e, me.ToAgent) and isinstance(e.message, m.Watermarks)]
    assert (advance.committed, advance.granted) == (2, 6)


@pytest.mark.parametrize(("steps", "lines_get_longer"), [(1500, True), (50, False)])
def test_a_quick_job_gets_longer_lines_but_not_beyond_its_last_step(steps: int, lines_get_longer: bool) -> None:
    machine = job(steps=steps, metrics_every=None)
    running(machine)
    machine.handle(me.Published(-1), 1.2)
    found: dict[str, dict[str, Any]] = {}
    for turn in range(1, 4):
        report = m.RankReport("work", 0, 0, "ready", 100, finished=12 * turn)
        found |= records(tell(machine, "a0", 1.2 + turn / 4, report))
    assert ("lines_cut" in found) == lines_get_longer


def test_reports_that_come_late_or_twice_change_nothing() -> None:
    machine = job()
    running(machine)
    tell(machine, "a0", 3.0, m.RankReport("work", 0, 0, "ready", 100, finished=5))
    assert tell(machine, "a0", 2.0, m.RankReport("work", 0, 0, "failed", 100)) == []
    assert machine.state.ranks["work", 0].state == "running"


def test_an_agents_death_is_no_failure_and_ranks_that_its_next_incarnation_does_not_know_are() -> None:
    machine = job(ranks=2)
    running(machine)
    died = machine.handle(me.AgentLost("a0", 1, "killed", node_lost=False), 2.0)
    assert set(records(died)) == {"agent_died", "agent_started"}
    assert [e.agents[0].incarnation for e in died if isinstance(e, me.StartAgents)] == [2]
    assert {rank.state for rank in machine.state.ranks.values()} == {"running"}
    lives = m.RankReport("work", 0, 0, "ready", 100)
    report = m.Report("a0", 2, 1, "n0", "host", 4, "", 1, -1, (lives,))
    found = records(machine.handle(me.FromAgent("a0", report), 2.5))
    assert (found["failure"]["failure"]["role"], found["failure"]["failure"]["rank"]) == ("work", 1)
    assert machine.state.ranks["work", 0].state == "running"


def test_lines_of_metrics_wait_for_the_next_incarnation_of_a_dead_agent() -> None:
    machine = job()
    running(machine)
    assert machine.state.settled
    machine.handle(me.AgentLost("a0", 1, "killed", node_lost=False), 2.0)
    assert not machine.state.settled
    tell(machine, "a0", 3.0, m.RankReport("work", 0, 0, "ready", 100))
    assert machine.state.settled


@pytest.mark.parametrize("fails", [True, False], ids=["its starts fail", "its start hangs"])
def test_ranks_whose_agent_does_not_come_back_in_time_have_failed(fails: bool) -> None:
    """Starts that fail are repeated within the lease. One that is under way may take as long as the job's start."""
    machine = job(ranks=2)
    running(machine)
    machine.handle(me.AgentLost("a0", 1, "killed", node_lost=False), 2.0)
    at = 2.0
    while "agent_lost" not in (found := records(machine.handle(me.Tick(), at))):
        assert "failure" not in found
        at += 1.0
        if fails:
            incarnation = machine.state.agents["a0"].incarnation
            found = records(machine.handle(me.AgentLost("a0", incarnation, "it did not start", node_lost=False), at))
            assert "failure" not in found
        assert at < 900.0
    limit = machine.config.job.lease_s if fails else machine.config.job.hold_s
    assert limit <= at - 2.0 <= limit + 2.0
    assert "failure" in found


def test_an_agent_that_dies_again_and_again_while_nothing_is_committed_is_lost() -> None:
    machine = job(ranks=2)
    running(machine)
    ready = tuple(m.RankReport("work", n, 0, "ready", 100) for n in (0, 1))
    for incarnation in range(1, 30):
        found = records(machine.handle(me.AgentLost("a0", incarnation, "killed", node_lost=False), 2.0))
        if "agent_lost" in found:
            break
        report = m.Report("a0", incarnation + 1, 1, "n0", "host", 4, "", 1, -1, ready)
        machine.handle(me.FromAgent("a0", report), 2.0)
    assert incarnation == MOST_DEATHS + 1


def test_an_agent_without_ranks_may_be_lost() -> None:
    machine = job(ranks=1, agents=2)
    running(machine)
    found = records(machine.handle(me.AgentLost("a1", 1, "its node is gone", node_lost=True), 2.0))
    assert set(found) == {"agent_lost"}
    assert machine.state.phase == "running"
    assert set(records(machine.handle(me.AgentLost("a0", 1, "its node is gone", node_lost=True), 2.1))) >= {
        "agent_lost",
        "failure",
        "job_stopping",
    }


def test_later_facts_about_a_node_are_journalled_and_a_new_incarnation_forgets_them() -> None:
    machine, again = job(ranks=1, agents=2), job(ranks=1, agents=2)
    running(machine)
    running(again)
    effects = machine.handle(me.AgentLost("a1", 1, "its process is gone", node_lost=False), 2.0)
    effects += machine.handle(me.AgentLost("a1", 1, "its node is gone", node_lost=True), 2.1)
    assert machine.handle(me.AgentLost("a1", 1, "its node is gone", node_lost=True), 2.2) == []
    kinds = [effect.kind for effect in effects if isinstance(effect, me.JournalEntry)]
    assert kinds == ["agent_lost", "node_lost"]
    replayed(again, effects)
    again_started = {"agent": "a1", "incarnation": 2, "node": "n1", "resources": {}}
    assert machine.state.agents["a1"].node_lost
    assert again.state.agents["a1"].node_lost
    follow(again.state, Event(3, 1, 0.0, "agent_started", again_started))
    assert not again.state.agents["a1"].node_lost


def replayed(machine: MasterMachine, effects: list[me.Effect]) -> None:
    made = [effect for effect in effects if isinstance(effect, me.JournalEntry)]
    replay(machine.state, [Event(i, 1, 0.0, each.kind, each.data) for i, each in enumerate(made)], "", 0.0, 0.0)


def refusals(machine: MasterMachine, now: float, count: int) -> list[dict[str, Any]]:
    """Return the journalled data after the only agent reports that it has refused `count` connections."""
    report = m.Report("a0", 1, int(now * 1000), "n0", "h", 1, "", 1, -1, (), refused=count)
    effects = machine.handle(me.FromAgent("a0", report), now)
    return [e.data for e in effects if isinstance(e, me.JournalEntry) and e.kind == "connections_refused"]


def test_refused_connections_are_counted_and_reported_when_their_number_doubles() -> None:
    machine = job()
    running(machine)
    told = [count for now, count in enumerate((0, 1, 1, 2, 3, 5, 6, 9), 2) if refusals(machine, now, count)]
    assert told == [1, 2, 5, 9]
    assert sum(machine.state.refused.values()) == 9
    (last,) = refusals(machine, 20, 16)
    assert last == {"agent": "a0", "incarnation": 1, "node": "n0", "count": 16}
    again = MasterMachine(machine.config, extensions=in_master(SHIPPED))
    replay(again.state, [Event(1, 1, 0.0, "connections_refused", last)], "", 0.0, 0.0)
    assert again.state.refused == machine.state.refused


def test_each_problem_of_an_agent_is_told_once_and_at_the_end_what_is_over() -> None:
    machine = job()
    running(machine)
    told = []
    for now, warning in enumerate(
        ("full", "full", "full; a/0 has none", "a/1 has none; full", "full", "", "", "full"), 2
    ):
        report = m.Report("a0", 1, now * 1000, "n0", "h", 1, "", 1, -1, (), (), (), (), warning)
        found = records(machine.handle(me.FromAgent("a0", report), float(now)))
        told += [(now, kind, data["message"]) for kind, data in found.items()]
        assert machine.warnings() == ((f"a0: {warning}",) if warning else ())
    assert told == [
        (2, "snapshot_warning", "full"),
        (4, "snapshot_warning", "a/0 has none"),
        (5, "snapshot_warning", "a/1 has none"),
        (7, "snapshot_warning_over", "full"),
        (9, "snapshot_warning", "full"),
    ]


def test_the_calls_of_a_rank_count_in_all_its_lives_although_its_node_has_lost_its_memory() -> None:
    def again(failure: Failure, view: JobView) -> RecoveryPlan:
        return RecoveryPlan(tuple(each.ref for each in view.ranks))

    machine = job(ladder=(LadderLevel("all", "job", 9, 600.0, again),), snapshots=SnapshotPlan(enabled=True))
    running(machine)
    happened: list[me.Effect] = []
    for generation, (calls, known) in enumerate(((5, 5), (0, 5), (8, 8))):
        now = 100.0 * (generation + 1)
        tell(machine, "a0", now, m.RankReport("work", 0, generation, "ready", 100, calls=calls))
        happened += tell(machine, "a0", now + 1, m.RankReport("work", 0, generation, "gone", 0))
        for half in range(4, 80):  # the plans that have not helped wait
            happened += tell(machine, "a0", now + half / 2)
            happened += machine.handle(me.Tick(), now + half / 2)
        rank = machine.state.ranks[RankRef("work", 0)]
        assert (rank.launch.generation, rank.launch.calls, rank.calls) == (generation + 1, known, known)
    entries = [effect for effect in happened if isinstance(effect, me.JournalEntry)]
    after = MasterMachine(machine.config, extensions=in_master(SHIPPED))
    replay(after.state, [Event(n, 1, 0.0, e.kind, e.data) for n, e in enumerate(entries, 1)], "", 0.0, 0.0)
    assert after.state.ranks[RankRef("work", 0)].calls == 8


def test_a_set_that_cannot_be_made_whole_is_told_once_tried_again_and_does_not_hold_up_the_end() -> None:
    machine = job(snapshots=SnapshotPlan(enabled=True, every=1, persist_every=2))
    running(machine)
    done = m.RankReport("work", 0, 0, "done", 100, finished=9, durable=9, sha256="x")
    part = m.Persisted("work", 0, 9, {"work/rank-0-of-1.safetensors": (1, "y")})
    machine.handle(me.Published(9), 2.0)

    def reported(now: float) -> list[me.Effect]:
        report = m.Report("a0", 1, int(now * 1000), "n0", "h", 1, "", 1, -1, (done,), (), (part,))
        return machine.handle(me.FromAgent("a0", report), now)

    told = []
    for now in (3.0, 4.0, 5.0):
        assert any(isinstance(effect, me.CommitCheckpoint) for effect in reported(now)), "it is tried again"
        told += [*records(machine.handle(me.CheckpointCommitted(9, "not here"), now + 0.5))]
    assert told == ["snapshot_warning"]
    assert machine.state.phase == "running"
    found = alone(machine, 6.0, 3.0 + WARNED_S + 0.1)
    assert found["job_stopping"]["status"] == "done"


def test_no_set_becomes_whole_while_it_is_looked_for_where_the_job_goes_back_to() -> None:
    everybody = LadderLevel("job", "job", 9, 300.0, lambda f, view: RecoveryPlan((("work", 0),), "disk"))
    machine = job(ladder=(everybody,), snapshots=SnapshotPlan(enabled=True, every=1, persist_every=2))
    running(machine)
    machine.handle(me.Published(9), 2.0)
    part = m.Persisted("work", 0, 1, {"work/rank-0-of-1.safetensors": (1, "y")})

    def reported(now: float, state: Any) -> list[me.Effect]:
        rank = m.RankReport("work", 0, 0, state, 100, finished=1, durable=1)
        report = m.Report("a0", 1, int(now * 1000), "n0", "h", 1, "", 1, -1, (rank,), (), (part,))
        return machine.handle(me.FromAgent("a0", report), now)

    machine.handle(me.FromAgent("a0", m.Report("a0", 1, 2100, "n0", "h", 1, "", 1, -1, (
        m.RankReport("work", 0, 0, "failed", 100, finished=1, durable=1),))), 2.1)  # fmt: skip
    gone = m.Report("a0", 1, 2200, "n0", "h", 1, "", 1, -1, (m.RankReport("work", 0, 0, "gone"),))
    effects = machine.handle(me.FromAgent("a0", gone), 2.2)
    assert me.FindOrigin() in effects
    assert not any(isinstance(effect, me.CommitCheckpoint) for effect in reported(2.3, "gone"))


def test_a_part_of_a_set_that_its_agent_has_given_up_is_no_part_any_more() -> None:
    machine = job(ranks=2, agents=2, snapshots=SnapshotPlan(enabled=True))
    running(machine)
    machine.progress.published = 9

    def told(agent: str, now: float, *parts: m.Persisted) -> list[me.Effect]:
        of = machine.state.agents[agent]
        ranks = tuple(m.RankReport(*key, 0, "ready", 100) for key, r in machine.state.ranks.items() if r.agent == agent)
        report = m.Report(agent, of.incarnation, int(now * 1000), of.place.node, "h", 1, "", 1, -1, ranks, (), parts)
        return machine.handle(me.FromAgent(agent, report), now)

    told("a0", 2.0, m.Persisted("work", 0, 9, {}, attempt="first"))
    told("a0", 3.0)
    assert not [
        e for e in told("a1", 4.0, m.Persisted("work", 1, 9, {}, attempt="only")) if isinstance(e, me.CommitCheckpoint)
    ]
    again = told("a0", 5.0, m.Persisted("work", 0, 9, {}, attempt="second"))
    (complete,) = [effect for effect in again if isinstance(effect, me.CommitCheckpoint)]
    assert [part.attempt for part in complete.parts] == ["second", "only"]


def test_a_level_is_told_when_failures_were_what_was_avoided_and_which_nodes_are_spare() -> None:
    seen: list[JobView] = []

    def recover(failure: Failure, view: JobView) -> RecoveryPlan:
        seen.append(view)
        return RecoveryPlan((("work", 0),), avoid=("n1",))

    machine = job(agents=2, ladder=(LadderLevel("avoids", "process", 9, 300.0, recover),))
    machine.handle(me.NodesSeen(("n0", "n1", "n2")), 0.5)
    running(machine)
    for generation, now in enumerate((1.6, 2.5)):
        failed = m.RankReport("work", 0, generation, "failed", 100, failure=Failure("exit", "work", 0, exit_code=1))
        tell(machine, "a0", now, failed)
        tell(machine, "a0", now + 0.2, m.RankReport("work", 0, generation, "gone"))
        again = m.RankReport("work", 0, generation + 1, "ready", 100)
        for later in (0.4, 0.6, 0.8):
            tell(machine, "a1", now + later)
            tell(machine, "a0", now + later, again)
    first, second = seen
    assert (first.failures, first.failed_at, first.spares) == ((), (), ("n1", "n2"))
    assert [failure.cause for failure in second.failures] == ["exit"]
    assert second.failed_at == (1.6,)
    assert [attempt.avoid for attempt in second.attempts] == [("n1",)]


def test_the_kept_state_of_a_job_is_all_but_the_reports_of_agents() -> None:
    machine = job()
    running(machine)
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(machine.state.kept), type=JobState)
    assert kept.agents["a0"].report is None
    assert machine.state.agents["a0"].report is not None
    assert kept.kept == machine.state.kept
    assert (*KeptJob.__struct_fields__, "here") == JobState.__struct_fields__
