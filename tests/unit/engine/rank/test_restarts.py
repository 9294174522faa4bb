"""A kill of any rank at any time: the job ends as without it, and has each line of metrics once."""

import pytest
from tests.unit.engine.rank.flows import STATEFUL, classes, flow
from tests.waiting import HANG_S

from rolemesh.api.partition import Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh_durable.protocol.messages import Fault
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

STEPS = 30


def calm(village, graph, made, **options):
    quiet = village(graph, made, **{"stateful": STATEFUL, "steps": STEPS} | options)
    quiet.start()
    return quiet.done(), quiet.metrics()


@pytest.mark.parametrize("role", ["data", "rollout", "trainer"])
@pytest.mark.parametrize("size", [4, 20_000])
def test_a_killed_rank_goes_on_from_its_memory(village, role, size):
    graph = flow()
    want = calm(village, graph, classes(size=size))
    job = village(graph, classes(size=size), stateful=STATEFUL, steps=STEPS)
    job.start()
    for step in (4, 11, 19):
        job.finished(role, step)
        job.kill((role, 0))
    assert (job.done(), job.metrics()) == want
    assert job.ranks[role, 0].launch.generation == 3


def disturb(job, rng, kills, together=0.3):
    """Kill `kills` times: ranks and moments at random, sometimes two at once, sometimes one that is just starting."""
    keys = list(job.ranks)
    for number in range(kills):
        role, rank = rng.choice(keys)
        target = min(STEPS - 1, number * STEPS // kills + rng.randrange(4))
        if rng.random() < 0.7:
            job.finished(role, target, rank)
        for _ in range(rng.randrange(6)):
            job.tick()
        victims = [(role, rank)]
        if rng.random() < together:
            victims.append(rng.choice(keys))
        job.kill(*victims)


CASES = {
    "large values": {"made": {"size": 20_000}},
    "streams": {"flow": {"streaming": True}},
    "strictly on-policy": {"flow": {"lag": 0}},
    "weights every third step": {"flow": {"lag": 3, "every": 3}},
    "one credit": {"flow": {"credits": 1}},
    "other world sizes": {"sizes": {"data": 2, "rollout": 3, "trainer": 2}, "made": {"size": 5000}},
    "a stream to several": {"sizes": {"data": 2, "rollout": 1, "trainer": 2}, "flow": {"streaming": True}},
    "snapshots every fourth step": {"snapshots": SnapshotPlan(enabled=True, every=4)},
    "lines of four steps": {"metrics_every": 4, "snapshots": SnapshotPlan(enabled=True, every=3)},
    "a group": {"sizes": {"data": 1, "rollout": 2, "trainer": 2}, "collective": ("trainer",)},
    "a state and repeated inputs": {
        "made": {"rollout": "Counting"},
        "flow": {"lag": 3, "every": 3},
        "stateful": ("data", "rollout", "trainer"),
        "repeats": ("rollout",),
    },
    "two nodes": {"nodes": {("data", 0): "n0", ("rollout", 0): "n1", ("trainer", 0): "n0"}, "made": {"size": 9000}},
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
@pytest.mark.parametrize("case", CASES)
def test_random_kills_change_nothing(village, dice, case, seed):
    options = dict(CASES[case])
    graph, made = flow(**options.pop("flow", {})), classes(**options.pop("made", {}))
    want = calm(village, graph, made, **options)
    job = village(graph, made, **{"stateful": STATEFUL, "steps": STEPS} | options)
    job.start()
    disturb(job, dice(f"{case}/{seed}"), kills=6)
    assert (job.done(), job.metrics()) == want
    assert job.killed >= 6


def pair(src="next", *, credits=2, lag=0, streaming=False):
    """data → trainer."""
    ops = (
        OpCall(0, "data", src, "data.next", Split()),
        OpCall(1, "trainer", "train", "trainer.train", None, streaming=streaming),
    )
    return LogicalGraph("pair", ops, (Edge(0, 0, 1, "x", Split(), Split(), lag=lag, credits=credits),))


def two(data=0.0, trainer=0.0, size=20_000):
    return {"data": ("Source", {"pause": data, "size": size}), "trainer": ("Trainer", {"pause": trainer, "size": size})}


def test_values_of_a_dead_producer_stay_readable_until_its_successor_is_committed(village):
    plan = SnapshotPlan(enabled=True, every=5)
    want = calm(village, pair(), two(), snapshots=plan)
    job = village(pair(), two(trainer=0.05), stateful=STATEFUL, steps=STEPS, snapshots=plan)
    job.start()
    job.finished("data", 1)
    before = job.files("slot-data-0-0-*")
    assert before
    job.kill(("data", 0))
    job.until(lambda: job.ranks["data", 0].ready)
    assert job.ranks["data", 0].launch.resume == -1
    assert set(job.files("slot-data-0-0-*")) == set(before), "orphans: the trainer has descriptors of them"
    assert (job.done(), job.metrics()) == want
    job.until(lambda: job.files("slot-data-0-0-*") == [])


def test_both_sides_killed_one_after_the_other(village):
    want = calm(village, pair(credits=4), two())
    job = village(pair(credits=4), two(data=0.002, trainer=0.004), stateful=STATEFUL, steps=STEPS)
    job.start()
    for step in (5, 14, 22):
        job.finished("trainer", step)
        job.kill(("trainer", 0))
        job.kill(("data", 0))
        job.finished("data", min(step + 4, STEPS - 1))
        job.kill(("trainer", 0))
    assert (job.done(), job.metrics()) == want


def test_a_rank_that_is_done_serves_a_consumer_that_restarts_and_says_the_same_digest_again(village):
    want = calm(village, pair(credits=STEPS), two())
    job = village(pair(credits=STEPS), two(trainer=0.02), stateful=STATEFUL, steps=STEPS)
    job.start()
    job.finished("data", STEPS - 1)
    job.kill(("trainer", 0))
    job.finished("trainer", 10)
    job.kill(("data", 0))
    job.kill(("trainer", 0))
    assert job.ranks["data", 0].launch.resume == STEPS - 1
    assert (job.done(), job.metrics()) == want
    first = job.ranks["trainer", 0].sha
    job.kill(("trainer", 0), ("data", 0))
    assert (job.done(), job.metrics()) == want
    assert job.ranks["trainer", 0].sha == first


def test_the_log_does_not_grow_with_the_job(village):
    job = village(pair(), two(size=600), stateful=STATEFUL, steps=400)
    job.start()
    job.finished("data", 399)
    job.done()
    job.until(lambda: len(job.files("log-data-0-*")) <= 1)
    assert sum(path.stat().st_size for path in job.shm.rglob("log-data-0-*")) <= 2 << 20, "11 MiB were sent"


def test_a_producer_over_its_budget_waits_only_for_what_a_commit_can_bring(village):
    plan = SnapshotPlan(enabled=True, every=6)
    want = calm(village, pair(credits=8), two(), snapshots=plan)
    job = village(
        pair(credits=8), two(), stateful=STATEFUL, steps=STEPS, snapshots=plan, retention_bytes=2 * 6 * 20_000 * 8
    )
    job.start()
    job.finished("data", 12)
    job.kill(("data", 0))
    assert (job.done(), job.metrics()) == want


def test_a_stream_that_was_used_in_part_goes_on_where_it_stopped(village):
    graph = pair("chunks", streaming=True)
    want = calm(village, graph, two())
    job = village(graph, two(data=0.03), stateful=STATEFUL, steps=STEPS)
    job.start()
    for step in range(0, 12, 3):
        job.finished("data", step)
        job.until(lambda step=step: job.ranks["data", 0].status_page.read().step > step)
        for _ in range(8):
            job.tick()
        job.kill(("data", 0))
    assert (job.done(), job.metrics()) == want


def test_a_rehearsed_fault_ends_the_rank_at_once_or_in_its_next_operator(village):
    job = village(pair(), two(trainer=0.02), stateful=STATEFUL, steps=STEPS)
    job.start()
    job.finished("trainer", 2)
    job.tell("trainer", 0, Fault("exit"))
    job.ranks["trainer", 0].process.join(HANG_S)
    assert job.ranks["trainer", 0].process.exitcode == 3
    job.kill(("trainer", 0))
    job.until(lambda: job.ranks["trainer", 0].ready)
    job.tell("trainer", 0, Fault("raise"))
    with pytest.raises(AssertionError, match=r"trainer\.train.*injected by --chaos"):
        job.done()
    job.failures.clear()
    job.kill(("trainer", 0))
    job.done()


@pytest.mark.parametrize("role", ["data", "rollout", "trainer"])
def test_a_rank_whose_memory_was_emptied_is_restored_from_what_was_made_since(village, role):
    graph = flow()
    want = calm(village, graph, classes())
    job = village(graph, classes(), stateful=STATEFUL, steps=STEPS)
    job.start()
    job.finished(role, 6)
    for path in [path for path in job.shm.rglob("*") if path.is_file()]:
        path.unlink()
    emptied = max(known.status_page.read().finished for known in job.ranks.values())
    job.until(lambda: job.committed > emptied)
    job.kill((role, 0))
    assert (job.done(), job.metrics()) == want
