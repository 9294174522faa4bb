"""The seconds that a resize reports: from when all ranks are at the step until the new ones run."""

from __future__ import annotations

import msgspec
from tests.configs import master_config

from rolemesh.api.partition import Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh_durable.extensions.relayout.records import ResizeAsked
from rolemesh_durable.extensions.relayout.resizing import Resizing
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.checkpoints import Checkpoints
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.coordinator import Coordinator
from rolemesh_durable.protocol.master.extension import MasterParts
from rolemesh_durable.protocol.master.progress import Progress
from rolemesh_durable.protocol.master.stop_points import StopPoints
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

GRAPH = LogicalGraph(
    "g",
    (OpCall(0, "data", "next", "data.next", Split()), OpCall(1, "work", "do", "work.do", None)),
    (Edge(0, 0, 1, "rows", Split(), Split()),),
)
STEP = 5


def test_the_time_begins_when_all_ranks_are_at_the_step_and_not_when_its_checkpoint_is_on_disk() -> None:
    launches = tuple(m.RankLaunch(role, 0, 1, 0, 1, 0) for role in ("data", "work"))
    places = (AgentPlace("a", "n", {}),)
    context = MasterContext(
        master_config(GRAPH, {"a": launches}, places, steps=100, snapshots=SnapshotPlan(True)), (), ()
    )
    progress, state = Progress(context), context.state
    checkpoints = Checkpoints(context, progress)
    coordinator = Coordinator(context, progress, checkpoints)
    parts = MasterParts(context, progress, checkpoints, coordinator, StopPoints(context, progress), {})
    resizing = Resizing(parts)
    state.phase, state.agents["a"].state = "running", "up"
    context.tell(ResizeAsked(1, {"work": 2}, "test", 0.0))
    context.tell(t.StopPoint(STEP, "relayout", "test"))

    def turn(now: float, *finished: int) -> list[e.Effect]:
        for record, step in zip(state.ranks.values(), finished, strict=True):
            record.state, record.finished = "running", step
        context.now = now
        resizing.turn()
        return context.taken()

    turn(1.0, STEP, STEP - 1)
    turn(2.0, STEP, STEP)
    assert not any(isinstance(effect, e.Places) for effect in turn(3.0, STEP, STEP))
    state.committed = state.persisted = progress.published = STEP
    assert any(isinstance(effect, e.Places) for effect in turn(4.0, STEP, STEP))
    state.layout = msgspec.structs.replace(state.layout, number=1, step=STEP)
    told = [effect.data for effect in turn(6.5, STEP, STEP) if isinstance(effect, e.JournalEntry)]
    assert [each["seconds"] for each in told] == [4.5]
