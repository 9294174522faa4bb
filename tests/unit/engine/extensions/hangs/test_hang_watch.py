"""How long an operator may take before it is judged to hang, and what it gains by that; `test_hang` is about whom."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from tests.configs import in_master, master_config

from rolemesh.api.failures import RecoveryPlan
from rolemesh.api.observer import Event
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_durable.extensions.hangs.messages import Dump, Stacks
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.extension_message import Sealed
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import events as me
from rolemesh_durable.protocol.master.ladder import LadderLevel
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.replay import replay
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

AFTER_S = 10.0
COMPUTING = 1


AGAIN = LadderLevel("process", "process", 99, 300.0, lambda f, view: RecoveryPlan((("work", 0),)))


class Job:
    """One rank on one agent; `run` lets time pass in which it reports the same."""

    def __init__(self) -> None:
        graph = LogicalGraph("g", (OpCall(0, "work", "do", "work.do", None),), ())
        launches = {"a0": (m.RankLaunch("work", 0, 1, 0, 1, 0),)}
        config = master_config(
            graph, launches, (AgentPlace("a0", "n0", {}),), hang_after_s=AFTER_S, snapshots=SnapshotPlan(enabled=True)
        )
        self.machine = MasterMachine(config, [AGAIN], extensions=in_master())
        self.journal: list[Event] = []
        self.now, self.seq, self.generation = 0.0, count(1), 0
        self.turn(me.Begin())
        self.run(1.0, state="up")

    def turn(self, event: me.Event) -> None:
        for effect in self.machine.handle(event, self.now):
            if isinstance(effect, me.JournalEntry):
                self.journal.append(Event(len(self.journal) + 1, 1, self.now, effect.kind, effect.data))
            if isinstance(effect, me.ToAgent) and isinstance(effect.message, m.ToPart):
                dump = effect.message.message.opened(Dump)
                self.turn(me.FromAgent("a0", m.FromPart(Sealed.of(Stacks(*dump.start, "Thread 1")))))

    def run(self, seconds: float, **at: Any) -> list[dict[str, Any]]:
        """Half a second a turn; the hangs that were found."""
        seen, until = len(self.journal), self.now + seconds
        while self.now < until:
            self.now += 0.5
            known = self.machine.state.ranks["work", 0]
            state = at.get("state", "ready")
            if known.state == "halting":
                state = "gone"
            place = {"phase": COMPUTING, "op": 0, "finished": at.get("step", 0) - 1, **at}
            self.report(**{**place, "state": state})
            self.turn(me.Tick())
        return [event.data for event in self.journal[seen:] if event.kind == "hang"]

    def report(self, **at: Any) -> None:
        """The rank's newest process says where it is."""
        generation = self.machine.state.ranks["work", 0].launch.generation
        rank = m.RankReport("work", 0, generation, pid=7, **{"phase": COMPUTING, "op": 0, **at})
        report = m.Report("a0", 1, next(self.seq), "n0", "h", 1, "", 1, -1, (rank,))
        self.turn(me.FromAgent("a0", report))


def test_a_computing_operator_is_allowed_twice_as_long_each_time_and_the_text_says_so() -> None:
    job = Job()
    (first,) = job.run(AFTER_S + 4, step=3)
    assert "10 s were allowed, 20 s are the next time in this step" in first["text"]
    assert "hang.after_s" in first["text"]
    assert job.run(AFTER_S + 4, step=3) == []
    (second,) = job.run(AFTER_S, step=3)
    assert second["next_s"] == 4 * AFTER_S


@pytest.mark.parametrize("how", [{}, {"done": 1, "total": 9}], ids=["answers alone", "answers between reports"])
def test_a_rank_whose_calls_get_answers_does_not_hang_and_is_shown(how: dict[str, int]) -> None:
    job = Job()
    for looks in range(3 * int(AFTER_S)):
        assert job.run(0.5, step=3, answered=1 + looks, **how) == []
    assert "progress is reported by work/0 in work.do of step 3" in job.machine.warnings()[0]


def test_a_waiting_rank_that_reports_progress_does_not_hang_and_is_shown() -> None:
    job = Job()
    for looks in range(3 * int(AFTER_S)):
        assert job.run(0.5, step=3, done=looks) == []
    (told,) = job.machine.warnings()
    assert told == (
        "no rank has finished a step for more than 10 s; progress is reported by work/0 in work.do of step 3; "
        "its log may say what it waits for"
    )
    job.run(0.5, step=4)
    assert job.machine.warnings() == ()
    for looks in range(3 * int(AFTER_S)):
        job.run(0.5, step=5, done=looks)
    assert job.machine.warnings() == (), "a step has taken longer before"


def test_in_another_step_what_only_hung_before_is_allowed_no_more_than_any_other() -> None:
    job = Job()
    assert len(job.run(AFTER_S + 4, step=3)) == 1
    assert len(job.run(AFTER_S + 4, step=4)) == 1


def test_an_operator_that_once_ended_late_may_take_as_long_again_also_under_a_new_master() -> None:
    job = Job()
    assert len(job.run(AFTER_S + 4, step=3)) == 1
    assert job.run(AFTER_S + 5, step=3) == []
    assert job.run(1.0, step=4) == []
    (slow,) = [event.data for event in job.journal if event.kind == "slow_operator"]
    assert slow["seconds"] > AFTER_S
    again = MasterMachine(job.machine.config, [AGAIN], extensions=in_master())
    replay(again.state, job.journal, "", job.now, job.now)
    job.machine = again
    job.turn(me.Begin())
    assert job.run(1.9 * AFTER_S, step=6) == []
    assert len(job.run(3 * AFTER_S, step=6)) == 1, "who really hangs is found all the same"


@pytest.mark.parametrize("at", [{"frozen": True}, {"phase": 0, "op": -1}])
def test_a_rank_that_does_not_compute_gains_no_time(at: dict[str, Any]) -> None:
    job = Job()
    for _ in range(3):
        (hang,) = job.run(AFTER_S + 4, step=3, **at)
        assert not hang["next_s"]


def slow_operators(job: Job) -> list[dict[str, Any]]:
    return [event.data for event in job.journal if event.kind == "slow_operator"]


@pytest.mark.parametrize("state", ["ready", "gone"])
def test_an_operator_that_ends_after_its_verdict_may_take_as_long_again_though_it_is_killed(state: str) -> None:
    job = Job()
    while not job.run(0.5, step=3):
        pass
    job.now += 1.0
    job.report(step=4, finished=3, state=state)
    (slow,) = slow_operators(job)
    assert (slow["operator"], slow["step"]) == ("work.do", 3)
    assert slow["seconds"] > AFTER_S
    assert job.run(1.9 * AFTER_S, step=6) == []


def test_time_that_an_operator_took_while_others_moved_counts() -> None:
    job = Job()
    while not job.run(0.5, step=3, since_s=3 * AFTER_S):
        pass
    job.now += 1.0
    job.report(step=4, finished=3, state="ready")
    (slow,) = slow_operators(job)
    assert slow["seconds"] > 3 * AFTER_S
    assert job.run(5 * AFTER_S, step=6) == []


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize("state", ["failed", "gone"])
def test_a_rank_that_dies_in_its_operator_has_not_ended_it(state: str, judged: bool) -> None:
    job = Job()
    while not job.run(0.5, step=3):
        pass
    if not judged:
        assert job.run(AFTER_S + 5, step=3) == []
    job.now += 1.0
    job.report(step=3, finished=2, state=state)
    assert job.machine.state.busy
    job.run(1.0, step=4)
    assert slow_operators(job) == []
