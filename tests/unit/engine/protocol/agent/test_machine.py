"""The agent's machine, case by case; what it does among others is shown by ``tests/simulation``."""

from __future__ import annotations

from typing import Any

import pytest

from rolemesh.api.failures import Failure
from rolemesh.graph.logical import LogicalGraph
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.agent.machine import AgentMachine
from rolemesh_durable.protocol.agent.rank import LAST_WORD_S
from rolemesh_durable.protocol.agent.reporting import Identity
from rolemesh_durable.protocol.messages import NOTICE_S
from rolemesh_durable.protocol.neighbours import Neighbours
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_runtime.metrics import Metrics

WORK = StartRef("work", 0, 0)
NOBODY = Neighbours(LogicalGraph("", (), ()), {})


def order(role: str = "work", rank: int = 0, generation: int = 0, **more: Any) -> m.RankLaunch:
    return m.RankLaunch(role, rank, 2, rank, 2, generation, **more)


def started(*orders: m.RankLaunch, epoch: int = 1, lease_s: float = 5.0) -> AgentMachine:
    machine = AgentMachine(Identity("a", "n"), lease_s, NOBODY)
    machine.handle(ae.FromMaster(m.Launch(epoch, 0, orders or (order(),))), 0.0)
    return machine


def of(effects: list[ae.Effect], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def reports(effects: list[ae.Effect]) -> list[m.Report]:
    return [e.message for e in effects if isinstance(e, ae.ToMaster) and isinstance(e.message, m.Report)]


def test_a_rank_is_started_once_however_often_it_is_ordered() -> None:
    machine = AgentMachine(Identity("a", "n"), 5.0, NOBODY)
    launch = ae.FromMaster(m.Launch(1, 0, (order(),)))
    assert of(machine.handle(launch, 0.0), ae.Fork) == [ae.Fork(order())]
    assert of(machine.handle(launch, 0.1), ae.Fork) == []


def test_a_newer_generation_waits_for_the_end_of_the_older_one() -> None:
    machine = started()
    newer = order(generation=1)
    effects = machine.handle(ae.FromMaster(m.Launch(1, 0, (newer,))), 0.1)
    assert of(effects, ae.Kill) == [ae.Kill(*WORK)]
    assert of(effects, ae.Fork) == []
    assert of(machine.handle(ae.RankExited(*WORK, signal=9), 0.2), ae.Fork) == [ae.Fork(newer)]


def test_a_rank_that_was_halted_before_its_start_reports_the_files_of_the_one_before() -> None:
    ranks = range(200)
    machine = started(*(order(rank=n) for n in ranks))
    for n in ranks:
        machine.handle(ae.FromRank(m.RankHello("work", n, 0, 100 + n, {})), 0.1)
        machine.handle(ae.RankExited("work", n, 0, signal=9, snapshots=(4, 5)), 0.2)
    machine.handle(ae.FromMaster(m.Halt(1, tuple(StartRef("work", n, 0) for n in ranks))), 0.3)
    effects = machine.handle(ae.FromMaster(m.Launch(1, 0, tuple(order(rank=n, generation=1) for n in ranks))), 0.4)
    waiting = set(ranks) - {fork.launch.rank for fork in of(effects, ae.Fork)}
    effects = machine.handle(ae.FromMaster(m.Halt(1, tuple(StartRef("work", n, 1) for n in ranks))), 0.5)
    told = {rank.rank: rank.snapshots for rank in reports(effects)[-1].ranks if rank.state == "gone"}
    assert waiting
    assert told == dict.fromkeys(waiting, (4, 5))


def test_an_order_that_a_halt_has_overtaken_starts_nothing() -> None:
    machine = AgentMachine(Identity("a", "n"), 5.0, NOBODY)
    machine.handle(ae.FromMaster(m.Halt(1, (WORK,))), 0.0)
    assert of(machine.handle(ae.FromMaster(m.Launch(1, 0, (order(),))), 0.1), ae.Fork) == []


def test_a_rank_from_a_replica_starts_when_that_is_there_and_fails_when_it_is_not() -> None:
    elsewhere = order(replica="tcp://n2:1")
    machine = started(elsewhere)
    assert of(machine.handle(ae.Fetched(*WORK), 0.1), ae.Fork) == [ae.Fork(elsewhere)]
    machine = started(elsewhere)
    effects = machine.handle(ae.Fetched(*WORK, error="the agent does not answer"), 0.1)
    assert of(effects, ae.Fork) == []
    (rank,) = reports(effects)[-1].ranks
    assert rank.state == "failed"
    assert rank.failure is not None
    assert rank.failure.message == "the agent does not answer"


def test_an_agent_that_does_not_hear_its_master_revives_it_then_ends_its_ranks_and_itself() -> None:
    machine = started(lease_s=5.0)
    assert of(machine.handle(ae.Sampled(), 2.6), ae.ReviveMaster)
    machine.handle(ae.MasterRevived(False), 2.7)
    assert of(machine.handle(ae.Sampled(), 4.9), ae.Kill) == []
    assert of(machine.handle(ae.Sampled(), 5.1), ae.Kill) == [ae.Kill(*WORK)]
    effects = machine.handle(ae.RankExited(*WORK, signal=9), 5.2)
    assert of(effects, ae.CleanUp)
    assert machine.ended
    assert machine.handle(ae.FromMaster(m.Launch(1, 0, (order(generation=1),))), 5.3) == []


def test_an_agent_that_ends_waits_for_what_its_ranks_have_sent_before_their_exit() -> None:
    line = m.RankMetrics("work", 0, 0, (Metrics("work", 7, 1, 1, [0.0] * 3),))
    for late in (0.3, None):
        machine = started()
        machine.handle(ae.FromRank(m.RankHello(*WORK, 100, {})), 0.1)
        machine.handle(ae.FromMaster(m.Stop(1, 5.0)), 0.1)
        assert not of(machine.handle(ae.RankExited(*WORK, exit_code=0), 0.2), ae.CleanUp)
        if late is None:  # it never comes
            assert of(machine.handle(ae.Sampled(), 0.2 + LAST_WORD_S), ae.CleanUp)
        else:
            machine.handle(ae.FromRank(line), late)
            effects = machine.handle(ae.FromRank(m.RankEnds(*WORK)), late)
            assert of(effects, ae.CleanUp)
            assert [line.step for line in reports(effects)[-1].metrics] == [7]


def test_an_agent_waits_for_a_master_that_is_being_started_again() -> None:
    machine = started(lease_s=5.0)
    for at in (2.6, 5.2, 7.8):
        assert of(machine.handle(ae.Sampled(), at), ae.ReviveMaster)
        machine.handle(ae.MasterRevived(True), at + 0.1)
    assert of(machine.handle(ae.Sampled(), 10.4), ae.ReviveMaster)
    machine.handle(ae.MasterRevived(False), 10.5)
    assert of(machine.handle(ae.Sampled(), 10.6), ae.Kill) == [ae.Kill(*WORK)]


def test_a_question_that_never_was_answered_does_not_count_in_the_next_silence() -> None:
    machine = started(lease_s=5.0)
    assert of(machine.handle(ae.Sampled(), 2.6), ae.ReviveMaster)
    machine.handle(ae.FromMaster(m.Halt(1, ())), 3.0)
    assert of(machine.handle(ae.Sampled(), 5.6), ae.ReviveMaster)
    machine.handle(ae.MasterRevived(False), 5.7)
    assert of(machine.handle(ae.Sampled(), 8.1), ae.Kill) == [ae.Kill(*WORK)]


def test_an_agent_that_has_stood_still_itself_asks_before_it_ends() -> None:
    machine = started(lease_s=5.0)
    effects = machine.handle(ae.Sampled(), 60.0)
    assert of(effects, ae.ReviveMaster)
    assert of(effects, ae.Kill) == []
    machine.handle(ae.MasterRevived(False), 60.1)
    assert of(machine.handle(ae.Sampled(), 60.2), ae.Kill) == [ae.Kill(*WORK)]


def test_an_agent_whose_question_for_its_master_is_not_answered_waits_for_a_lease_more() -> None:
    machine = started(lease_s=5.0)
    assert of(machine.handle(ae.Sampled(), 2.6), ae.ReviveMaster)
    for at in (5.2, 7.5):
        effects = machine.handle(ae.Sampled(), at)
        assert of(effects, ae.ReviveMaster) == of(effects, ae.Kill) == []
    assert of(machine.handle(ae.Sampled(), 7.7), ae.Kill) == [ae.Kill(*WORK)]


@pytest.mark.parametrize("message", [m.Stop(1, 0.0), m.Halt(1, (WORK,)), m.Launch(1, 0, (order(generation=5),))])
def test_masters_of_older_epochs_are_not_obeyed(message: Any) -> None:
    machine = started(epoch=2)
    effects = machine.handle(ae.FromMaster(message), 0.1)
    assert [e for e in effects if not isinstance(e, ae.ToMaster)] == []
    assert not machine.lifetime.stopping


def test_the_ranks_own_report_wins_over_its_exit_code() -> None:
    machine = started()
    machine.handle(ae.RankExited(*WORK, exit_code=1), 0.0)
    told = Failure("exception", "work", 0, message="boom")
    (report,) = reports(machine.handle(ae.FromRank(m.RankFailed(told)), 0.05))
    assert report.ranks[0].failure is not None
    assert report.ranks[0].failure.message == "boom"
    later = reports(machine.handle(ae.Sampled(), 2.0))
    assert later[-1].ranks[0].failure == report.ranks[0].failure


@pytest.mark.parametrize("ended", [{"exit_code": 1}, {"signal": 9}])
def test_a_report_that_is_late_is_read_where_the_rank_has_kept_it(ended: dict[str, int]) -> None:
    told = Failure("exception", "work", 0, message="boom")
    machine = started()
    machine.handle(ae.RankExited(*WORK, failure=told, **ended), 0.0)
    (report,) = reports(machine.handle(ae.Sampled(), 2.0))
    assert report.ranks[0].failure is not None
    assert (report.ranks[0].failure.message, report.ranks[0].failure.node) == ("boom", "n")
    assert reports(machine.handle(ae.FromRank(m.RankFailed(told)), 2.1))[-1].ranks == report.ranks


def test_a_rank_that_exits_without_a_word_has_failed_and_one_that_was_halted_is_gone() -> None:
    machine = started()
    machine.handle(ae.RankExited(*WORK, exit_code=3), 0.0)
    (report,) = reports(machine.handle(ae.Sampled(), 2.0))
    assert report.ranks[0].state == "failed"
    assert report.ranks[0].failure is not None
    assert (report.ranks[0].failure.cause, report.ranks[0].failure.node) == ("exit", "n")

    machine = started()
    machine.handle(ae.FromMaster(m.Halt(1, (WORK,))), 0.0)
    (report,) = reports(machine.handle(ae.RankExited(*WORK, signal=9, snapshots=(3, 4)), 0.1))
    assert (report.ranks[0].state, report.ranks[0].snapshots) == ("gone", (3, 4))


def test_messages_of_an_earlier_generation_are_ignored() -> None:
    machine = started(order(generation=1))
    machine.handle(ae.FromRank(m.RankHello("work", 0, 0, 100, {})), 0.1)
    (report,) = reports(machine.handle(ae.Sampled(), 2.0))
    assert (report.ranks[0].state, report.ranks[0].pid) == ("starting", 0)


def test_a_new_timeline_forgets_what_is_in_memory_once_and_older_orders_are_void() -> None:
    machine = started()
    ended = machine.handle(ae.FromMaster(m.Launch(1, 1, ())), 0.1)
    assert of(ended, ae.Kill) == [ae.Kill("work", 0, 0)], "not before nobody uses it"
    assert of(ended, ae.Forget) == []
    machine.handle(ae.RankExited("work", 0, 0, signal=9), 0.1)
    assert of(machine.handle(ae.FromMaster(m.Launch(1, 1, ())), 0.15), ae.Forget) == [ae.Forget(1)]
    assert of(machine.handle(ae.FromMaster(m.Launch(1, 1, ())), 0.2), ae.Forget) == []
    assert of(machine.handle(ae.FromMaster(m.Launch(1, 0, (order("other"),))), 0.3), ae.Fork) == []


def test_the_first_report_has_the_ranks_of_an_earlier_incarnation_with_their_state_and_end() -> None:
    hello, ready = m.RankHello("work", 0, 2, 100, {"control": "here"}), m.RankReady("work", 0, 2, 1.5)
    found = (
        ae.Found(order(generation=2), (hello, ready)),
        ae.Found(order("other"), (), ae.RankExited("other", 0, 0, signal=11, snapshots=(3, 4))),
    )
    machine = AgentMachine(Identity("a", "n", 7), 5.0, NOBODY, ae.Left(3, found))
    effects = machine.handle(ae.Sampled(), 0.0)
    assert of(effects, ae.ToRank) == [ae.ToRank("work", 0, m.Adopted(7))]
    assert of(effects, ae.RankDied) == [ae.RankDied("other", 0)]
    (report,) = reports(effects)
    assert report.timeline == 3
    living, dead = report.ranks
    assert (living.generation, living.state, living.pid, living.setup_s) == (2, "ready", 100, 1.5)
    assert (dead.state, dead.snapshots) == ("failed", (3, 4))
    assert dead.failure is not None
    assert dead.failure.signal == 11
    machine.handle(ae.FromMaster(m.Halt(1, (StartRef("work", 0, 2),))), 0.1)
    machine.handle(ae.RankExited("work", 0, 2, signal=9, snapshots=(5,)), 0.2)
    (report,) = reports(machine.handle(ae.Sampled(), 2.0))
    assert (report.ranks[0].state, report.ranks[0].snapshots) == ("gone", (5,))


def test_the_first_report_says_how_far_an_earlier_incarnation_has_let_ranks_run() -> None:
    found = (ae.Found(order(), granted=4), ae.Found(order("other"), granted=9))
    machine = AgentMachine(Identity("a", "n", 7), 5.0, NOBODY, ae.Left(0, found))
    (report,) = reports(machine.handle(ae.Sampled(), 0.0))
    assert report.granted == 9


def test_lines_of_metrics_are_sent_again_until_they_are_published() -> None:
    machine = started()
    line = Metrics("work", 0, 1, 1, [0.0, 0.0, 0.0])
    told = machine.handle(ae.FromRank(m.RankMetrics("work", 0, 0, (line,))), 0.1)
    told += [each for t in (1.2, 2.4, 3.6, 4.8) for each in machine.handle(ae.Sampled(), t)]
    assert [r.metrics for r in reports(told)].count((line,)) == 2
    machine.handle(ae.FromMaster(m.Watermarks(1, 0, 5, 0, 0, -1, {})), 4.85)
    assert [r.metrics for r in reports(machine.handle(ae.Sampled(), 8.0))] == [()]


def test_lines_that_are_published_as_they_come_are_sent_once() -> None:
    machine, told = started(), []
    for step in range(12):  # the newest are never confirmed yet
        line = Metrics("work", step, 1, 1, [0.0, 0.0, 0.0])
        told += machine.handle(ae.FromRank(m.RankMetrics("work", 0, 0, (line,))), 0.5 * step + 0.1)
        told += machine.handle(ae.FromMaster(m.Watermarks(1, 0, 20, step - 1, step - 1, -1, {})), 0.5 * step + 0.2)
        told += machine.handle(ae.Sampled(), 0.5 * step + 0.4)
    sent = [line.step for report in reports(told) for line in report.metrics]
    assert sent == list(range(12))


def test_the_installation_of_an_environment_is_reported_at_once() -> None:
    machine = started()
    machine.handle(ae.Sampled(), 0.01)
    assert reports(machine.handle(ae.Sampled(), 0.02)) == []
    (report,) = reports(machine.handle(ae.Sampled(making=("pip: Collecting torch",)), 0.03))
    assert report.making == ("pip: Collecting torch",)


def test_a_rank_whose_environment_could_not_be_made_says_so() -> None:
    machine = started()
    machine.handle(ae.RankExited(*WORK, error="pip ended with exit code 1\n| why", cause="environment"), 0.1)
    (report,) = reports(machine.handle(ae.Sampled(), 0.3))
    (rank,) = report.ranks
    assert rank.failure is not None
    assert (rank.failure.cause, rank.failure.traceback) == ("environment", "| why")


def test_forgotten_lines_are_not_reported_again_not_even_for_a_rank_that_was_halted_here() -> None:
    machine = started()
    machine.handle(ae.Sampled(stored=(m.Stored("other", 0, (4, 5)),)), 0.1)
    machine.handle(ae.FromMaster(m.Halt(1, (WORK,))), 0.2)
    machine.handle(ae.RankExited(*WORK, signal=9, snapshots=(4, 5)), 0.3)
    (before,) = reports(machine.handle(ae.Sampled(stored=(m.Stored("other", 0, (4, 5)),)), 5.0))
    assert (before.ranks[0].snapshots, before.stored) == ((4, 5), (m.Stored("other", 0, (4, 5)),))
    effects = machine.handle(ae.FromMaster(m.Watermarks(1, 1, -1, 3)), 9.0)
    (after,) = reports(effects)
    assert of(effects, ae.Forget) == [ae.Forget(1)]
    assert (after.timeline, after.ranks[0].state, after.ranks[0].snapshots, after.stored) == (1, "gone", (), ())


def test_an_agent_that_is_told_to_end_says_so_at_once_and_quits_when_nobody_comes_for_its_ranks() -> None:
    machine = started(lease_s=60.0)
    (report,) = reports(machine.handle(ae.Leave(), 1.0))
    assert report.leaving
    assert of(machine.handle(ae.Sampled(), NOTICE_S), ae.Quit) == []
    machine.handle(ae.Leave(), NOTICE_S)
    assert of(machine.handle(ae.Sampled(), 1.0 + NOTICE_S), ae.Quit) == [ae.Quit()]
