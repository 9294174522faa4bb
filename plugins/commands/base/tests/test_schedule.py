"""Which failures come when, what they may hit, and how one sees that they have."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from rolemesh.api.observer import AgentStatus, JobStatus, RankStatus
from rolemesh_rehearsal.account import account, work
from rolemesh_rehearsal.injector import Injector, RehearsalError, _Pending
from rolemesh_rehearsal.schedule import (
    Fault,
    Passing,
    children_killed,
    furthest,
    has_hit,
    is_lost,
    is_told,
    may_appear,
    moments,
    next_fault,
    progress,
    why_none,
)
from rolemesh_rehearsal.spec import Rehearsal


def rank(n: int, state: str = "running", step: int = 5, generation: int = 0) -> RankStatus:
    return RankStatus("work", n, "n0", 100 + n, state, step, generation=generation)


def status(*ranks: RankStatus, epoch: int = 1, pid: int = 7, agent: str = "up") -> JobStatus:
    agents = (AgentStatus("node0", "n0", pid, agent),)
    return JobStatus("job", "running", epoch, -1, 20, 0.0, 1, "host", agents, ranks)


def test_moments_are_spread_over_the_steps_and_targets_come_equally_often() -> None:
    found = moments(Rehearsal(kills=9, seed=3, targets=("rank", "agent", "master")), 3000)
    assert [moment.step for moment in found] == sorted(moment.step for moment in found)
    assert all(-1 <= moment.step < 2999 for moment in found)
    assert sorted(moment.target for moment in found) == ["agent"] * 3 + ["master"] * 3 + ["rank"] * 3


def test_moments_of_a_step_follow_one_another() -> None:
    """If each began when the one before was over, most failures of a short job would meet ranks that wait for them."""
    found = [each for each in moments(Rehearsal(kills=60, seed=3), 6) if not each.again]
    assert [(each.step, each.share) for each in found] == sorted((each.step, each.share) for each in found)
    assert len({each.step for each in found}) < len(found) / 5


def test_a_step_lasts_as_long_as_those_that_no_failure_disturbs() -> None:
    passing = Passing()
    for step, at in [(-1, 0.0), (0, 0.02)]:
        passing.look(step, at)
    assert passing.pace == math.inf, "no step has ended: the ranks have begun the first one"
    for step, at in [(1, 20.0), (1, 22.0), (2, 30.0), (4, 52.0), (5, 152.0)]:
        passing.look(step, at)
    assert passing.pace == pytest.approx(11.0)
    assert [passing.at(step) for step in (1, 3, 4, 9)] == [20.0, 52.0, 52.0, 152.0]


@pytest.mark.parametrize("state", ["done", "starting", "failed", "halting"])
def test_a_rehearsal_hits_only_living_unfinished_processes(state: str) -> None:
    rng = random.Random(1)
    assert next_fault(rng, "rank", status(rank(0, state))) is None
    for _ in range(20):
        found = next_fault(rng, "rank", status(rank(0, state), rank(1)))
        assert found is not None
        assert found.target == "work/1"


@pytest.mark.parametrize(
    ("target", "kinds", "hit"),
    [
        ("work/1", {"kill", "exit", "raise"}, {"work/1"}),
        ("work/*", {"kill", "exit", "raise"}, {"work/0", "work/1"}),
        ("stop:work/1", {"stop"}, {"work/1"}),
        ("full:work/*", {"full"}, {"work/0", "work/1"}),
        ("child:work/*", {"child"}, {"work/0", "work/1"}),
        ("agent:node0", {"kill"}, {"agent:node0"}),
        ("zygote:node0", {"zygote"}, {"agent:node0"}),
        ("disk:node0", {"disk"}, {"agent:node0"}),
    ],
)
def test_a_failure_that_names_its_target_hits_nothing_else(target: str, kinds: set[str], hit: set[str]) -> None:
    rng, others = random.Random(1), RankStatus("other", 1, "n0", 9, "running", 5)
    there = status(rank(0), rank(1), others)
    found = [next_fault(rng, target, there) for _ in range(60)]
    assert {fault.kind for fault in found if fault} == kinds
    assert {fault.target for fault in found if fault} == hit
    gone = status(others, agent="lost")
    assert next_fault(rng, target, gone) is None, "it waits for its target, and takes no other"


def test_a_node_that_is_named_is_the_one_that_is_lost() -> None:
    agents = tuple(AgentStatus(f"node{n}", f"n{n}", 7, "up") for n in range(3))
    there = replace(status(rank(0)), agents=agents)
    assert {next_fault(random.Random(n), "node:n1", there) for n in range(9)} == {Fault("kill", "node:n1")}
    assert next_fault(random.Random(1), "node:n7", there) is None


def test_the_only_node_with_ranks_is_lost_where_the_job_can_use_others() -> None:
    assert next_fault(random.Random(1), "node", status(rank(0))) is None
    assert next_fault(random.Random(1), "node", status(rank(0)), nodes_left=2) == Fault("kill", "node:n0")
    assert next_fault(random.Random(1), "node", status(rank(0)), nodes_left=1) is None


@pytest.mark.parametrize("target", ["agent:a0", "work/0"])
def test_a_restart_for_another_reason_is_no_effect_of_a_failure_whose_order_was_lost(
    tmp_path: Path, target: str
) -> None:
    fault = Fault("kill", target)
    agents = tuple(AgentStatus("a0", "n0", pid, "up") for pid in (7, 8))
    before = replace(status(rank(0)), agents=agents[:1])
    now = replace(status(rank(0, generation=1)), agents=agents[1:])
    injector = Injector(Rehearsal(kills=1), tmp_path)
    injector._pending = [_Pending(fault, before, moments(Rehearsal(kills=1), 9)[0], time.monotonic())]
    injector._settle(now)
    assert injector.injected == []

    event = {"kind": "injected", "data": {"kind": "kill", "target": target.removeprefix("agent:")}}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    injector._settle(now)
    assert injector.injected == [fault]


@pytest.mark.parametrize(
    ("target", "kind", "data"),
    [
        ("node:n1", "agent_lost", {"agent": "node1", "node": "n1", "node_lost": True}),
        ("agent:node1", "agent_died", {"agent": "node1", "node": "n1"}),
        ("work/0", "failure", {"failure": {"role": "work", "rank": 0}}),
        ("master", "master_recovered", {}),
    ],
)
def test_a_failure_that_hit_just_before_the_job_was_interrupted_counts(
    tmp_path: Path, target: str, kind: str, data: dict[str, object]
) -> None:
    injector = Injector(Rehearsal(kills=3), tmp_path)
    injector._pending = [_Pending(Fault("kill", target), status(), moments(Rehearsal(kills=1), 9)[0], 0.0)]
    ordered = {"kind": "kill", "target": target.removeprefix("agent:")}
    injected, hit = {"kind": "injected", "data": ordered}, {"kind": kind, "data": data}
    assert not is_told(Fault("kill", target), [hit, injected]), "it failed before"
    lines = [json.dumps(event) for event in (injected, hit)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + '\n{"kind": "fai')
    injector.start()
    assert injector.stop() == [Fault("kill", target)]
    assert account(injector.injected, 1, {}).startswith(f"rehearsal: 1 failure injected: kill {target}")
    said = account(injector.injected, 3, {"status": "interrupted"})
    assert (
        said == f"rehearsal: 1 of 3 failures injected: kill {target}; the job has ended before the others: interrupted"
    )


def test_progress_is_the_step_that_all_ranks_have_reached() -> None:
    """A rank that computes nothing, such as one that is only called, runs ahead: no failure comes for its sake."""
    now = status(rank(0, step=3), rank(1, step=9))
    seen = furthest({}, now)
    assert progress(seen, now) == 3
    assert progress({}, status()) == -1
    again = status(rank(0, step=1), rank(1, step=10))
    assert progress(furthest(seen, again), again) == 3, "a restarted rank repeats steps"
    committed = replace(status(rank(0, step=0)), committed=8)
    assert progress(furthest({}, committed), committed) == 8, "a new agent knows less than the journal"


def test_a_failure_has_time_to_show_until_ranks_have_restarted(tmp_path: Path) -> None:
    injector = Injector(Rehearsal(kills=1), tmp_path)
    waiting = status(rank(0, "failed"))
    injector._pending = [_Pending(Fault("kill", "work/0"), waiting, moments(Rehearsal(kills=1), 9)[0], 0.0)]
    injector._settle(waiting)
    assert [each.fault.target for each in injector._pending] == ["work/0"]
    (tmp_path / "events.jsonl").write_text('{"kind": "injected", "data": {"kind": "kill", "target": "work/0"}}\n')
    injector._settle(status(rank(0, generation=1)))
    assert injector.injected == [Fault("kill", "work/0")]


def test_a_failure_has_hit_when_its_target_is_another_one() -> None:
    before = status(rank(0), rank(1))
    again = status(rank(0, generation=1), rank(1))
    assert has_hit(Fault("kill", "work/0"), before, again)
    assert not has_hit(Fault("kill", "work/1"), before, again)
    assert has_hit(Fault("kill", "master"), before, replace(before, epoch=2))
    assert not has_hit(Fault("stop", "master"), before, again)
    for target in ("agent:node0", "node:n0"):
        assert not has_hit(Fault("kill", target), before, again)
        assert has_hit(Fault("kill", target), before, status(pid=8))
        assert has_hit(Fault("kill", target), before, status(agent="lost"))
    assert has_hit(Fault("disk", "agent:node0"), before, before)
    assert not has_hit(Fault("zygote", "agent:node0"), before, status(rank(0), rank(1), pid=8))
    assert has_hit(Fault("zygote", "agent:node0"), before, again)


def test_a_killed_child_shows_in_the_events_only() -> None:
    fault, before = Fault("child", "work/0"), status(rank(0))
    assert not has_hit(fault, before, status(rank(0, generation=1)))
    injected = {"kind": "injected", "data": {"kind": "child", "target": "work/0"}}
    killed = {"kind": "child_killed", "data": {"target": "work/0", "pid": 9, "name": "python"}}
    assert children_killed([injected, killed]) == {"work/0": 1}
    assert is_told(fault, [injected, killed])
    assert not is_told(fault, [killed, injected])


def test_an_order_to_kill_a_child_goes_with_the_processes_that_know_of_it() -> None:
    fault, before = Fault("child", "work/0"), status(rank(0), rank(1))
    assert not is_lost(fault, before, status(rank(0, step=9), rank(1, generation=1)))
    for now in (status(rank(0, generation=1), rank(1)), status(rank(0), rank(1), pid=8), replace(before, epoch=2)):
        assert is_lost(fault, before, now)
        assert not is_lost(Fault("kill", "work/0"), before, now)


def test_a_child_that_is_to_be_killed_holds_up_nothing_but_another_child_of_its_rank() -> None:
    pending, now = [Fault("child", "work/0")], status(rank(0), rank(1))
    for target in ("work/0", "work/1", "agent", "zygote"):
        assert next_fault(random.Random(1), target, now, pending=pending) is not None
    found = {next_fault(random.Random(seed), "child:work/*", now, pending=pending) for seed in range(9)}
    assert found == {Fault("child", "work/1")}
    assert next_fault(random.Random(1), "child:work/0", now, pending=pending) is None


def test_a_failure_waits_for_a_target_only_while_something_restarts() -> None:
    assert not may_appear(status(rank(0), rank(1, "done")), [Fault("child", "work/0"), Fault("full", "work/0")])
    assert may_appear(status(rank(0), rank(1)), [Fault("raise", "work/0")])
    for recovering in (status(rank(0), rank(1, "starting")), status(rank(0), agent="lost")):
        assert may_appear(recovering, [])


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("work/0", "it has finished its work"),
        ("agent:node7", "there is no agent 'node7'"),
        ("node:n7", "there is no node 'n7'"),
        ("node", "only one node is left"),
        ("zygote:node0", "it is not alive, or has no rank"),
    ],
)
def test_a_target_that_is_not_hit_comes_with_the_reason(target: str, why: str) -> None:
    assert next_fault(random.Random(1), target, status(rank(0, "done")), nodes_left=1) is None
    assert why_none(target, status(rank(0, "done")), nodes_left=1).startswith(why)


@pytest.mark.parametrize(("phase", "limit_s"), [("computing", 30.0), ("idle", 5.0)])
def test_an_exception_waits_long_only_for_a_rank_that_computes(phase: str, limit_s: float) -> None:
    now = status(replace(rank(0), phase=phase))
    assert _Pending(Fault("raise", "work/0"), now, moments(Rehearsal(kills=1), 9)[0], 0.0).limit_s(now) == limit_s


def test_the_work_of_two_runs_is_compared_by_the_calls_that_ran() -> None:
    found = work({"calls": {"rollout": 52, "box": 3}}, {"calls": {"rollout": 50, "box": 0}})
    assert found == ["calls of rollout that ran: 52, 1.04 × undisturbed (50)", "calls of box that ran: 3"]
    assert work({}, {}) == []


def test_the_account_says_what_was_not_hit(tmp_path: Path) -> None:
    injector = Injector(Rehearsal(kills=3), tmp_path)
    injector._children = moments(Rehearsal(kills=2, targets=("child:work/*",)), 9)
    injector._pending = [_Pending(Fault("kill", "work/0"), status(), moments(Rehearsal(kills=1), 9)[0], 0.0)]
    injector.start()
    said = account(injector.stop(), 3, {}, injector.not_hit())
    assert "  not hit: agent, 1 ×: the failure was injected, and no effect has shown" in said
    assert "  not hit: child:work/*, 2 ×: no rank of it had a process of its own" in said


def test_fewer_failures_than_were_asked_for_are_an_error(tmp_path: Path) -> None:
    injector = Injector(Rehearsal(kills=3), tmp_path)
    injector.injected = [Fault("kill", "work/0")]
    with pytest.raises(RehearsalError, match="only 1 of the 3 failures of the rehearsal have hit something") as found:
        injector.check()
    assert found.value.exit_code == 1
    injector.injected *= 3
    injector.check()
    injector.start()
    assert injector.stop() == injector.injected


def test_a_rank_that_waits_for_its_next_step_is_killed_where_it_could_not_raise() -> None:
    def kinds(released: int) -> set[str]:
        found = [next_fault(random.Random(seed), "rank", status(rank(0, step=5)), released) for seed in range(40)]
        return {fault.kind for fault in found if fault is not None}

    assert kinds(6) == {"kill", "exit", "raise"}
    assert kinds(5) == {"kill", "exit"}


@pytest.mark.parametrize(
    ("pending", "left"),
    [
        ((), {"r/0", "r/1", "s/0"}),
        ((Fault("raise", "s/0"),), {"r/0", "r/1"}),
        ((Fault("kill", "r/0"),), {"s/0"}),
        ((Fault("zygote", "agent:a"),), {"s/0"}),
        ((Fault("kill", "node:n"), Fault("clock", "agent:b")), {"s/0"}),
        ((Fault("kill", "agent:a"), Fault("kill", "agent:b")), set()),
    ],
)
def test_targets_with_a_pending_fault_are_not_hit_again(pending: tuple[Fault, ...], left: set[str]) -> None:
    ranks = (
        RankStatus("r", 0, "n", 1, "running", 5),
        RankStatus("r", 1, "n", 2, "running", 5),
        RankStatus("s", 0, "m", 3, "running", 5),
    )
    agents = (AgentStatus("a", "n", 4, "up"), AgentStatus("b", "m", 5, "up"))
    now = replace(status(), ranks=ranks, agents=agents)
    found = {next_fault(random.Random(seed), "rank", now, pending=pending) for seed in range(60)}
    assert {fault.target for fault in found if fault is not None} == left


def test_a_master_that_is_about_to_die_is_not_killed_again_and_its_agent_only_when_its_ranks_are_not() -> None:
    now = status(rank(0))
    assert next_fault(random.Random(0), "master", now, pending=(Fault("kill", "master"),)) is None
    assert next_fault(random.Random(0), "agent", now, pending=(Fault("full", "work/0"),)) is not None
    assert next_fault(random.Random(0), "agent", now, pending=(Fault("kill", "work/0"),)) is None


def test_ranks_are_released_for_the_next_steps_only(tmp_path: Path) -> None:
    """Nobody knows how long a step takes before the first one has ended: the whole job was released for its first."""
    injector = Injector(Rehearsal(kills=1, targets=("child:work/*",)), tmp_path)
    injector._over.set()
    injector._at(-1, status(rank(0)))
    assert injector._released == 0
    for step in range(4):
        injector._passing.look(step, step * 0.1)
    injector._at(3, status(rank(0)))
    assert injector._released == 6


@pytest.mark.parametrize(("step_s", "released"), [(0.5, 11), (2.0, 4)], ids=["quick", "slow"])
def test_ranks_of_slow_steps_are_at_work_when_a_failure_comes(tmp_path: Path, step_s: float, released: int) -> None:
    injector = Injector(Rehearsal(kills=1), tmp_path)
    injector._over.set()
    for step in range(4):
        injector._passing.look(step, step * step_s)
    injector._at(3, status(rank(0)))
    assert injector._released == released
