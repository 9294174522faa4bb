"""The times of questions to scalers, the load in each question, and the answers that lead to a resize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.configs import master_config

from rolemesh.api.partition import Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh_durable.extensions.relayout.records import Relayout, Resize, ResizeAsked, ResizeRefused
from rolemesh_durable.extensions.relayout.resizing import Resizing
from rolemesh_durable.extensions.scaling.master import LATE_S, AskScaler, ScalerSaid, Scaling
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.job import PluginUse
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.extension import MasterParts
from rolemesh_durable.protocol.master.sizes import refusal
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan
from rolemesh_durable.scalers import Load, Wanted

GRAPH = LogicalGraph(
    "g",
    (OpCall(0, "data", "next", "data.next", Split()), OpCall(1, "work", "do", "work.do", None)),
    (Edge(0, 0, 1, "rows", Split(), Split(), lag=1),),
)
SCALER = PluginUse({}, {"period_s": 10.0, "agree": 2, "cool_down_s": 30.0})


class Asking:
    """In the place of `Resizing`, which a test of its own has."""

    def __init__(self, context: MasterContext) -> None:
        self._context = context

    def refusal(self, wanted: Mapping[str, int]) -> str:
        return refusal(wanted, self._context.config, self._context.state)

    @property
    def wanted(self) -> Resize | None:
        return self._context.state.slice(Relayout).resize

    def ask_for(self, wanted: Mapping[str, int], reason: str) -> None:
        self._context.tell(ResizeAsked(self._context.state.layouts + 1, dict(wanted), reason, self._context.now))


class Job:
    """Two roles that run: data/0 is held up by work/0, which computes all the time."""

    def __init__(self, snapshots: bool = True) -> None:
        launches = tuple(m.RankLaunch(role, 0, 1, 0, 1, 0) for role in ("data", "work"))
        self.context = MasterContext(
            master_config(
                GRAPH,
                {"a": launches},
                (AgentPlace("a", "n", {}),),
                steps=100,
                snapshots=SnapshotPlan(snapshots),
                ranges={"work": (1, 3)},
                scalers={"mine": SCALER},
            ),
            (),
            (),
        )
        self.context.room = {"work": 2}
        state = self.context.state
        state.phase, state.agents["a"].state = "running", "up"
        for record in state.ranks.values():
            record.state = "running"
        unused: Any = None
        resizing: Any = Asking(self.context)
        parts = MasterParts(self.context, unused, unused, unused, unused, {Resizing: resizing})
        self.scaling = Scaling(parts)

    def turn(self, now: float) -> list[Load]:
        """Take a turn at `now`; return the loads of its questions to scalers."""
        state, times = self.context.state, {"data": {0: 0.8 * now, -1: 0.1 * now}, "work": {0: 0.0, -1: now}}
        self.context.now = state.agents["a"].heard = now
        for (role, rank), record in state.ranks.items():
            record.report = m.RankReport(role, rank, 0, "ready", times=times[role])
        self.scaling.turn()
        return [effect.load for effect in self.context.taken() if isinstance(effect, AskScaler)]

    def said(self, wanted: Wanted | None, error: str = "") -> list[dict[str, int]]:
        """Give the answer of a scaler; return the sizes of the recorded resizes."""
        self.scaling.handlers()[ScalerSaid](ScalerSaid(0, wanted, error))
        return [effect.data["sizes"] for effect in self.context.taken() if isinstance(effect, e.JournalEntry)]

    def until_asked(self, now: float) -> float:
        """Take turns until one has a question to the scaler; return its time."""
        while not self.turn(now):
            now += 1.0
        return now


def test_the_load_is_that_of_the_last_period_and_is_asked_about_after_the_pause() -> None:
    job = Job()
    found = {now: loads for now in range(60) if (loads := job.turn(float(now)))}
    assert list(found) == [40], "30 s of pause, and 10 s of which it is told"
    ((load,),) = found.values()
    assert (load.window_s, load.since_resize_s) == (10.0, 40.0)
    assert [(r.role, r.ranks, r.least, r.most, r.room, r.busy) for r in load.roles] == [
        ("data", 1, 1, 1, 1, 0.1),
        ("work", 1, 1, 3, 2, 1.0),
    ]
    (edge,) = load.edges
    assert (edge.producer, edge.consumer, edge.waiting, edge.blocked) == ("data", "work", 0.0, 0.8)


def test_an_answer_counts_when_it_was_given_twice_in_a_row_and_within_limits() -> None:
    job = Job()
    now = job.until_asked(0.0)
    assert job.said(Wanted({"work": 9, "data": 4}, "why")) == []
    now = job.until_asked(now)
    assert job.said(None) == []
    for times in range(2):
        now = job.until_asked(now)
        assert job.said(Wanted({"work": 9, "data": 4}, "why")) == [{"work": 3}] * times
    resize = job.context.state.slice(Relayout).resize
    assert resize is not None
    assert resize.reason == "scaler mine: why"
    assert job.context.state.sizes == {"data": 1, "work": 1}
    assert not any(job.turn(now + after) for after in range(60)), "nobody is asked meanwhile"


def test_answers_agree_that_want_the_same_roles_to_grow_and_the_last_says_by_how_much() -> None:
    job = Job()
    now = job.until_asked(0.0)
    assert job.said(Wanted({"work": 3}, "why")) == []
    job.until_asked(now)
    assert job.said(Wanted({"work": 2}, "why")) == [{"work": 2}]


def test_after_a_resize_that_could_not_be_had_the_pause_is_doubled() -> None:
    job = Job()
    pauses, now = [], 0.0
    for _ in range(3):
        ended, now = now, job.until_asked(now)
        pauses.append(now - ended)
        job.said(Wanted({"work": 3}, "why"))
        now = job.until_asked(now)
        assert job.said(Wanted({"work": 3}, "why"))
        job.turn(now)
        job.context.tell(ResizeRefused(job.context.state.layouts, "there is no room", now))
    assert pauses == pytest.approx([40.0, 70.0, 130.0], abs=2.0)


def test_errors_of_a_scaler_are_reported() -> None:
    job = Job(snapshots=False)
    now = job.until_asked(0.0)
    job.said(None, "it failed")
    assert job.context.warnings == {"scaler mine": "it failed"}
    for _ in range(2):
        now = job.until_asked(now)
        assert job.said(Wanted({"work": 2}, "why")) == []
    assert job.context.warnings["scaler mine"].startswith("the job takes no snapshots")
    now = job.until_asked(now)
    for later in range(40):
        assert job.turn(now + later) == []
    assert job.context.warnings["scaler mine"] == f"it has not answered for {LATE_S:g} s"


def test_after_a_start_the_pause_begins_again() -> None:
    job = Job()
    for now in range(35):
        job.turn(float(now))
    state = job.context.state
    state.phase = "starting"
    job.turn(35.0)
    state.phase = "running"
    assert job.until_asked(36.0) == 75.0
