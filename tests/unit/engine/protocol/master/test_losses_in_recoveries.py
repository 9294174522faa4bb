"""Nodes that are lost while a recovery restarts the ranks that ran there."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engine.protocol.master.test_machine import job, records, running, tell

from rolemesh.api.failures import Failure, JobView, RecoveryPlan
from rolemesh_durable.extensions.bans.master import MOST_AWAY_S, Banned, NodesBanned
from rolemesh_durable.extensions.relayout.records import DrainWanted
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as me
from rolemesh_durable.protocol.master.apply import apply
from rolemesh_durable.protocol.master.clocks import by_another_clock
from rolemesh_durable.protocol.master.coordinator import LINES_S
from rolemesh_durable.protocol.master.ladder import LadderLevel
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.transitions import JobStarted
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

WAIT_S = 40.0


def recovering(*avoid: str) -> MasterMachine:
    """A job of three nodes that restarts all ranks outside the nodes `avoid`, because the rank on n0 has failed."""

    def everything(failure: Failure, view: JobView) -> RecoveryPlan:
        """Only the plan for a lost node waits for another one."""
        ranks = tuple(each.ref for each in view.ranks)
        if failure.cause == "node_lost":
            return RecoveryPlan(ranks, avoid=(failure.node,), wait_s=WAIT_S)
        return RecoveryPlan(ranks, avoid=avoid)

    level = LadderLevel("all", "job", 3, 600.0, everything)
    machine = job(ranks=3, agents=3, ladder=(level,), snapshots=SnapshotPlan(enabled=True))
    running(machine)
    machine.handle(DrainWanted("n1", "it goes", 60.0), 1.5)
    tell(machine, "a0", 2.0, m.RankReport("work", 0, 0, "gone", 100))
    machine.handle(me.Tick(), 2.5)
    assert plan(machine).avoid == avoid
    return machine


def plan(machine: MasterMachine) -> RecoveryPlan:
    assert machine.state.recovery is not None
    return machine.state.recovery.plan


def lose(machine: MasterMachine, agent: str) -> dict[str, dict[str, Any]]:
    return records(machine.handle(me.AgentLost(agent, 1, "its node is gone", node_lost=True), 2.6))


def test_the_loss_of_a_leaving_node_is_a_failure_if_the_plan_has_counted_on_its_room() -> None:
    machine = recovering()
    assert set(lose(machine, "a1")) >= {"agent_lost", "failure", "recovery_planned"}
    assert (plan(machine).avoid, plan(machine).wait_s) == (("n1",), WAIT_S)


def test_the_loss_of_a_leaving_node_is_no_failure_if_the_plan_leaves_it() -> None:
    machine = recovering("n1")
    assert set(lose(machine, "a1")) == {"agent_left"}
    assert (plan(machine).avoid, plan(machine).wait_s) == (("n1",), 0.0)


def test_a_plan_changes_if_the_node_of_a_lost_agent_turns_out_to_be_gone_too() -> None:
    machine = recovering()
    machine.handle(me.AgentLost("a0", 1, "it has ended", node_lost=False), 2.55)
    assert (plan(machine).avoid, plan(machine).wait_s) == ((), 0.0)
    assert set(lose(machine, "a0")) >= {"node_lost", "failure", "recovery_planned"}
    assert (plan(machine).avoid, plan(machine).wait_s) == (("n0",), WAIT_S)


def test_a_job_fails_if_the_last_level_finds_no_snapshot() -> None:
    level = LadderLevel("process", "process", 5, 600.0, lambda failure, view: RecoveryPlan((failure.ref,)))
    machine = job(ladder=(level,), snapshots=SnapshotPlan(enabled=True))
    running(machine)
    tell(machine, "a0", 1.5, m.RankReport("work", 0, 0, "ready", 100, finished=3, durable=3))
    machine.handle(me.Tick(), 1.6)
    assert machine.state.committed == 3
    found = {}
    for now in (2.0, 3.0, 4.0, 4.0 + LINES_S):
        found |= records(tell(machine, "a0", now, m.RankReport("work", 0, 0, "gone", 100)))
        found |= records(machine.handle(me.Tick(), now + 0.5))
    assert "no snapshot of work/0 at or after step 3" in found["recovery_failed"]["why"]
    assert found["job_stopping"]["status"] == "failed"


def test_a_ban_ends_if_the_last_level_finds_no_other_place() -> None:
    def bans(failure: Failure, view: JobView) -> RecoveryPlan:
        return RecoveryPlan((failure.ref,), ban={failure.node: 600.0})

    machine = job(ladder=(LadderLevel("bans", "node", 5, 600.0, bans),), snapshots=SnapshotPlan(enabled=True))
    running(machine)
    gone = m.RankReport("work", 0, 0, "gone", 100)
    effects, found, asked = tell(machine, "a0", 2.0, gone), {}, list[tuple[str, ...]]()
    for now in (2.5, 3.0, 3.5, 4.0, 4.5):
        effects += machine.handle(me.Tick(), now)
        wanted = [effect for effect in effects if isinstance(effect, me.Places)]
        asked += [each.away for each in wanted]
        found |= records(effects)
        effects = [each for one in wanted for each in machine.handle(me.PlacesFound(one, "cpu 1 is missing"), now)]
    assert found["nodes_banned"]["nodes"] == {"n0": 600.0}
    assert found["ban_lifted"]["why"] == "there is no other place"
    assert found["suspects_used"]["nodes"] == ["n0"]
    assert set(asked) == {("n0",)}
    assert (machine.state.away(), plan(machine).avoid) == ((), ())


@pytest.mark.parametrize(
    ("clock", "now", "wall", "ends"),
    [
        ("", 300.0, 1300.0, 604.5),
        ("", 300.0, 9e9, 604.5),
        ("", 300.0, 0.0, 604.5),
        ("another boot", 7.0, 1300.0, 311.5),
        ("another boot", 7.0, 0.0, 607.0),
        ("another boot", 7.0, 9e9, 607.0 - MOST_AWAY_S),
    ],
    ids=["same clock", "steps forward", "steps back", "another clock", "it is behind", "it is far ahead"],
)
def test_a_new_master_keeps_the_end_of_a_ban(clock: str, now: float, wall: float, ends: float) -> None:
    state = job().state
    apply(state, JobStarted("j", 9, ["a0"], 1, 0.0, ""), 1000.0)
    apply(state, NodesBanned({"n0": 600.0}, 0, "bans", 4.5), 1004.5)
    by_another_clock(state, clock, now, wall)
    assert now + state.slice(Banned).left(now)["n0"] == pytest.approx(ends)
