"""A job that goes on from a persisted snapshot ends as if it had never stopped, also with other world sizes."""

import pytest
from tests.unit.engine.rank.flows import STATEFUL, classes, flow

from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

STEPS = 16
EACH = SnapshotPlan(enabled=True, persist_every=1)


def lagging(lag, every=1, streaming=False):
    """A flow whose samples and weights take `lag` steps to their consumers: each snapshot has many values in flight."""
    return flow(lag=lag, samples_lag=lag, every=every, streaming=streaming)


def run(village, graph, size=8, **options):
    job = village(graph, classes(pause=0.001, size=size), stateful=STATEFUL, steps=STEPS, **options)
    job.start()
    return job


def ends(job):
    done = job.done()
    return done["data", 0], done["trainer", 0]


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("size", [8, 20_000])
def test_it_goes_on_from_the_files(village, lag, size):
    want = ends(run(village, lagging(lag), size))
    first = run(village, lagging(lag), size, snapshots=SnapshotPlan(enabled=True, persist_every=5))
    folder = first.persist(4)
    assert ends(run(village, lagging(lag), size, origin=folder, origin_step=4)) == want


def test_and_again_from_what_it_persists_itself(village):
    graph = lagging(3, every=4)
    want = ends(run(village, graph))
    folder = run(village, graph, snapshots=EACH).persist(3)
    folder = run(village, graph, snapshots=EACH, origin=folder, origin_step=3).persist(5)
    folder = run(village, graph, snapshots=EACH, origin=folder, origin_step=5).persist(7)
    assert ends(run(village, graph, origin=folder, origin_step=7)) == want


@pytest.mark.parametrize(("before", "after"), [(3, 2), (1, 2), (2, 1)])
def test_with_another_world_size(village, before, after):
    sizes = {"data": 1, "rollout": before, "trainer": 1}
    want = ends(run(village, lagging(2), sizes=sizes))
    folder = run(village, lagging(2), sizes=sizes, snapshots=SnapshotPlan(enabled=True, persist_every=5)).persist(4)
    assert ends(run(village, lagging(2), sizes=sizes | {"rollout": after}, origin=folder, origin_step=4)) == want


def test_any_rank_may_be_killed_afterwards(village):
    want = ends(run(village, lagging(3, every=4)))
    folder = run(village, lagging(3, every=4), snapshots=SnapshotPlan(enabled=True, persist_every=5)).persist(4)
    job = run(village, lagging(3, every=4), origin=folder, origin_step=4)
    for step, role in ((-1, "rollout"), (5, "trainer"), (6, "rollout"), (8, "data"), (12, "rollout")):
        job.finished(role, step)
        job.kill((role, 0))
    assert ends(job) == want
