"""Failover on a Ray of several nodes: nodes, agents and masters are lost, and sometimes no other place is left.

The sink needs a resource that only some nodes have, which are lost and replaced; everything else stays on the others.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._raylet import GcsClient
from tests.e2e.conftest import job_in
from tests.e2e.harness import Job
from tests.e2e.ladder import ENDLESS, SLOW, STEPS, ended_well, launched, of_kind, pids, recovered
from tests.waiting import until

from rolemesh.api.observer import JobStatus
from rolemesh_ray.names import agent_actors, master_actor
from rolemesh_ray.nodes import state_of
from rolemesh_runtime.lock import is_held

pytestmark = pytest.mark.ray

Make = Callable[..., Job]
LADDER = """
failover:
  - {use: process}
  - {use: node, options: {node_wait_s: 120}}
  - {use: job}
engine: {options: {snapshots: {every: 1, persist_every: 5, replicas: 1}, hang: {after_s: 60}}}
"""
ON_AWAY = "roles.sink.resources.custom.away=1"
IN_MEMORY_ONLY = "engine.options.snapshots.persist_every=1000"
WAIT_WORDS = ("waiting up to", "sink/0", "away")


class AwayNodes:
    """The nodes with the resource `away`."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.nodes: dict[str, Any] = {}

    def have(self, count: int) -> None:
        """Add nodes, or take them away in good order, until there are as many."""
        while len(self.nodes) > count:
            self.cluster.remove_node(self.nodes.popitem()[1])
        while len(self.nodes) < count:
            node = self.cluster.add_node(num_cpus=1, resources={"away": 1})
            self.nodes[node.node_id] = node
        self.cluster.wait_for_nodes()

    def lose(self, node: str) -> float:
        """Kill everything of Ray on this node at once; returns when."""
        at = time.time()
        self.cluster.remove_node(self.nodes.pop(node), allow_graceful=False)
        return at


@pytest.fixture(scope="module")
def away(ray_cluster: Any) -> Iterator[AwayNodes]:
    nodes = AwayNodes(ray_cluster)
    yield nodes
    nodes.have(0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sink's sha256 at the end of a run in which nothing fails."""
    job = job_in(tmp_path_factory.mktemp("undisturbed"), "squares", extra=LADDER)
    done = job.run(f"steps={STEPS}", "engine.options.snapshots.replicas=0")
    assert done.returncode == 0, done.stdout + done.stderr
    return str(job.result()["state_sha256"]["sink"])


@pytest.fixture
def on_ray(make_job: Make, ray_address: str) -> Job:
    return make_job(backend=("--address", ray_address), extra=LADDER)


def node_of(status: JobStatus, role: str) -> str:
    return next(rank.node for rank in status.ranks if rank.role == role)


def as_undisturbed(job: Job, sha256: str) -> None:
    assert job.result()["state_sha256"]["sink"] == sha256


# ---------------------------------------------------------------------------------------------------- nodes with notice


@pytest.mark.soak
@pytest.mark.parametrize("who", ["ray", "sigterm", "command"])
def test_a_node_that_leaves_with_notice_costs_no_step(on_ray: Job, away: AwayNodes, who: str) -> None:
    away.have(2)
    process = on_ray.start(*ENDLESS, ON_AWAY, "engine.options.snapshots.replicas=0")
    before = on_ray.running(20)
    node = node_of(before, "sink")
    if who == "ray":
        address = ray.get_runtime_context().gcs_address
        preempted, deadline_ms = 2, int((time.time() + 60) * 1e3)
        told, why = GcsClient(address).drain_node(node, preempted, "the test", deadline_ms)
        assert told, why
    elif who == "sigterm":
        os.kill(next(agent.pid for agent in before.agents if agent.node == node), signal.SIGTERM)
    else:
        done = on_ray.cli("drain", on_ray.name, node[:10])
        assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: of_kind(on_ray, "drained"), "drained")
    after = on_ray.running()
    assert node_of(after, "sink") != node
    assert {name for name, pid in pids(before).items() if pids(after)[name] != pid} == {"sink/0"}
    until(lambda: of_kind(on_ray, "agent_left"), "its agent ends")
    away.lose(node)
    assert on_ray.cli("stop", on_ray.name, "--drain").returncode == 0
    ended_well(on_ray, process, int(on_ray.result()["committed_steps"]))
    hold, end = of_kind(on_ray, "stop_point")
    (launch,) = of_kind(on_ray, "recovery_launched")
    assert (hold["data"]["then"], end["data"]["then"]) == ("move", "end")
    assert [rank["resume"] for rank in launch["data"]["ranks"]] == [hold["data"]["step"]]
    assert not of_kind(on_ray, "failure", "agent_lost", "rolled_back")


@pytest.mark.soak
def test_a_spot_node_is_left_for_one_that_comes_after_the_notice(on_ray: Job, away: AwayNodes) -> None:
    away.have(0)
    away.have(1)
    process = on_ray.start(*ENDLESS, ON_AWAY, "engine.options.snapshots.replicas=0")
    node = node_of(on_ray.running(20), "sink")
    preempted, deadline_ms = 2, int((time.time() + 120) * 1e3)
    told, why = GcsClient(ray.get_runtime_context().gcs_address).drain_node(node, preempted, "spot", deadline_ms)
    assert told, why
    until(lambda: of_kind(on_ray, "drain_waiting"), "no room yet")
    at = on_ray.running().committed
    on_ray.running(at + 20)  # it goes on where it is meanwhile
    away.have(2)
    until(lambda: of_kind(on_ray, "drained"), "drained")
    assert node_of(on_ray.running(), "sink") in set(away.nodes) - {node}
    away.lose(node)
    assert on_ray.cli("stop", on_ray.name, "--drain").returncode == 0
    ended_well(on_ray, process, int(on_ray.result()["committed_steps"]))
    assert not of_kind(on_ray, "failure", "agent_lost", "rolled_back")


# ----------------------------------------------------------------------------------------------------------- lost nodes


@pytest.mark.parametrize(
    "master_too", [pytest.param(False, marks=pytest.mark.soak), True], ids=["node", "node and master"]
)
def test_ranks_of_a_lost_node_move_to_a_spare_one_and_go_on_from_their_replica(
    on_ray: Job, away: AwayNodes, undisturbed: str, master_too: bool
) -> None:
    away.have(2)
    process = on_ray.start(*SLOW, ON_AWAY, IN_MEMORY_ONLY)
    before = on_ray.running(20)
    lost = node_of(before, "sink")
    if master_too:
        os.kill(before.master_pid, signal.SIGKILL)
    away.lose(lost)
    after = recovered(on_ray)
    assert node_of(after, "sink") in away.nodes
    unmoved = {name: pid for name, pid in pids(before).items() if name != "sink/0"}
    assert unmoved.items() <= pids(after).items()
    ended_well(on_ray, process)
    as_undisturbed(on_ray, undisturbed)
    assert of_kind(on_ray, "rolled_back") == []
    assert launched(on_ray) == [["sink/0"]]
    (started,) = of_kind(on_ray, "recovery_launched")[0]["data"]["ranks"]
    assert (started["restore"], started["replica"] != "") == ("memory", True)
    assert started["resume"] >= before.committed >= 20
    (recovery,) = on_ray.result()["recoveries"]
    assert (recovery["level"], recovery["outcome"], recovery["restarted"]) == ("node", "recovered", ["sink/0"])
    assert bool(of_kind(on_ray, "master_recovered")) == master_too


@pytest.mark.soak
def test_without_a_replica_a_lost_node_takes_the_whole_job_back_to_the_disk(
    on_ray: Job, away: AwayNodes, undisturbed: str
) -> None:
    away.have(2)
    process = on_ray.start(*SLOW, ON_AWAY, "engine.options.snapshots.replicas=0")
    until(lambda: of_kind(on_ray, "persisted") if on_ray.running() else [], "a snapshot on disk")
    away.lose(node_of(on_ray.running(), "sink"))
    out = ended_well(on_ray, process)
    as_undisturbed(on_ray, undisturbed)
    (back,) = of_kind(on_ray, "rolled_back")
    assert back["data"]["step"] % 5 == 4
    assert "the whole job goes on after step" in out
    levels = [(r["level"], r["outcome"]) for r in on_ray.result()["recoveries"]]
    assert levels == [("node", "failed"), ("job", "recovered")]
    assert sorted(launched(on_ray)[-1]) == ["sink/0", "source/0", "work/0", "work/1"]


@pytest.mark.soak
def test_a_job_without_a_free_place_says_so_at_once_and_continues_when_there_is_one(
    on_ray: Job, away: AwayNodes, undisturbed: str
) -> None:
    away.have(1)
    process = on_ray.start(*SLOW, ON_AWAY, IN_MEMORY_ONLY)
    before = on_ray.running(20)
    lost_at = away.lose(node_of(before, "sink"))
    (waiting,) = until(lambda: of_kind(on_ray, "waiting_for_nodes"), "the job says what is missing")
    assert waiting["data"]["wait_s"] == 120
    assert waiting["time"] - lost_at < 120, "when the wait begins"
    assert "sink/0" in waiting["data"]["missing"]
    assert "away" in waiting["data"]["missing"]
    status = json.loads(on_ray.cli("status", "squares", "--json").stdout)
    assert {r["role"] for r in status["ranks"]} == {"source", "work", "sink"}
    away.have(1)
    out = ended_well(on_ray, process)
    as_undisturbed(on_ray, undisturbed)
    for word in WAIT_WORDS:
        assert word in out
    assert launched(on_ray) == [["sink/0"]]
    (recovery,) = on_ray.result()["recoveries"]
    assert (recovery["level"], recovery["outcome"]) == ("node", "recovered")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("when_full: fail", "there is no place"),
        pytest.param("node_wait_s: 2", "waited 2 s for one", marks=pytest.mark.soak),
    ],
)
def test_a_job_without_a_free_place_fails_after_a_short_waiting_time(
    on_ray: Job, away: AwayNodes, options: str, says: str
) -> None:
    away.have(1)
    ladder = f"failover=[{{use: process}}, {{use: node, options: {{{options}}}}}]"
    process = on_ray.start(*ENDLESS, ON_AWAY, IN_MEMORY_ONLY, ladder)
    before = on_ray.running(5)
    lost = node_of(before, "sink")
    away.lose(lost)
    out, _ = process.communicate()
    assert process.returncode == 1, out
    failure = on_ray.result()["failure"]
    assert (failure["cause"], failure["node"]) == ("node_lost", lost)
    (exhausted,) = of_kind(on_ray, "ladder_exhausted")
    trail = "\n".join(exhausted["data"]["trail"])
    for text in (trail, out):
        assert "node" in text
        assert "sink/0" in text
        assert says in text
        assert "away" in text
    assert bool(of_kind(on_ray, "waiting_for_nodes")) == ("wait" in says)


# ------------------------------------------------------------------------------------------------- more and fewer ranks

GROWS = (
    "roles.work.world_size={min: 1, max: 2}", "roles.work.resources.custom.away=1", "engine.options.grant=20",
    "engine.options.snapshots.replicas=0",
)  # fmt: skip


@ray.remote(num_cpus=0, resources={"away": 1})
class Neighbour:
    """Somebody else who has taken one of `away`."""

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()


def reserved(node: str) -> float:
    """How much of `away` is reserved there for jobs."""
    tables = [table for table in ray.util.placement_group_table().values() if table["state"] != "REMOVED"]
    found = [(t["bundles_to_node_id"][n], b) for t in tables for n, b in t["bundles"].items()]
    return sum(bundle.get("away", 0.0) for at, bundle in found if at == node)


@pytest.mark.soak
def test_a_scaler_takes_the_room_of_a_node_that_comes_and_shrink_does_without_it_again(
    on_ray: Job, away: AwayNodes
) -> None:
    away.have(1)
    process = on_ray.start(
        *ENDLESS, *GROWS,
        "plugins={scalers: [{use: backlog, options: {period_s: 1, agree: 2, cool_down_s: 1}}]}",
        "failover=[{use: process}, {use: node, options: {when_full: fail}}, {use: shrink}, {use: job}]",
    )  # fmt: skip
    before = on_ray.running(5)
    assert len([rank for rank in before.ranks if rank.role == "work"]) == 1
    away.have(2)
    until(lambda: of_kind(on_ray, "resized"), "it has grown")
    grown = on_ray.running()
    assert {rank.node for rank in grown.ranks if rank.role == "work"} == set(away.nodes)
    assert [reserved(node) for node in away.nodes] == [1.0, 1.0]
    assert of_kind(on_ray, "resize_asked")[0]["data"]["reason"].startswith("scaler backlog: ")
    others = {name for name in pids(before) if not name.startswith("work/")}
    assert {pids(grown)[name] for name in others} == {pids(before)[name] for name in others}
    away.lose(node_of(before, "work"))
    until(lambda: "shrink" in [each["data"]["level"] for each in of_kind(on_ray, "recovered")], "it has shrunk")
    shrunk = on_ray.running()
    assert [rank.node for rank in shrunk.ranks if rank.role == "work"] == list(away.nodes)
    assert shrunk.epoch == before.epoch, "no other master"
    assert on_ray.cli("stop", on_ray.name, "--drain").returncode == 0
    ended_well(on_ray, process, int(on_ray.result()["committed_steps"]))
    levels = {each["level"] for each in on_ray.result()["recoveries"] if each["outcome"] == "recovered"}
    assert levels - {"resize"} == {"shrink"}


@pytest.mark.soak
def test_resources_of_other_jobs_are_no_room_to_grow(on_ray: Job, away: AwayNodes) -> None:
    away.have(2)

    neighbour = Neighbour.remote()
    taken = ray.get(neighbour.node.remote())
    process = on_ray.start(*ENDLESS, *GROWS)
    assert [r.node for r in on_ray.running(5).ranks if r.role == "work"] == [n for n in away.nodes if n != taken]
    refused = on_ray.cli("scale", on_ray.name, "work=2")
    assert (refused.returncode, "there is no room" in refused.stderr) == (2, True), refused.stdout + refused.stderr
    ray.kill(neighbour)
    until(lambda: of_kind(on_ray, "resized"), "its command sees that there is room")
    assert [reserved(node) for node in away.nodes] == [1.0, 1.0]
    assert on_ray.cli("stop", on_ray.name, "--drain").returncode == 0
    ended_well(on_ray, process, int(on_ray.result()["committed_steps"]))


@pytest.mark.soak
def test_a_rank_that_moves_to_a_living_agent_has_its_place_reserved(
    on_ray: Job, away: AwayNodes, ray_cluster: Any
) -> None:
    away.have(0)
    large = ray_cluster.add_node(num_cpus=1, resources={"away": 2, "large": 1})
    ray_cluster.wait_for_nodes()
    try:
        neighbour = Neighbour.remote()
        assert ray.get(neighbour.node.remote()) == large.node_id
        away.have(1)
        needs = ("roles.source.resources.custom.away=1", "roles.source.resources.custom.large=1")
        process = on_ray.start(*ENDLESS, ON_AWAY, *needs, "engine.options.snapshots.replicas=0")
        (small,) = away.nodes
        assert node_of(on_ray.running(5), "sink") == small
        assert reserved(large.node_id) == 1.0
        ray.kill(neighbour)
        away.lose(small)
        after = recovered(on_ray)
        assert node_of(after, "sink") == large.node_id
        assert reserved(large.node_id) == 2.0
        assert on_ray.cli("stop", on_ray.name, "--drain").returncode == 0
        ended_well(on_ray, process, int(on_ray.result()["committed_steps"]))
    finally:
        ray_cluster.remove_node(large)


# ------------------------------------------------------------------------------------------------- masters and agents


@pytest.mark.soak  # test_the_masters_node_may_go kills it with its node
def test_a_killed_master_actor_costs_no_rank(on_ray: Job, undisturbed: str) -> None:
    process = on_ray.start(*SLOW, "roles.work.options.kwargs.sleep=0.1", "engine.options.snapshots.replicas=0")
    before, there = on_ray.running(10), master_node("squares")
    os.kill(before.master_pid, signal.SIGKILL)
    held: list[bool] = []

    def recovered() -> bool:
        held.append(is_held(on_ray.run_dir))
        return bool(of_kind(on_ray, "master_recovered"))

    until(recovered, "another master")
    assert all(held)  # between two masters the agents hold the run's folder
    after = on_ray.running()
    assert (after.epoch, pids(after)) == (2, pids(before))
    assert after.master_pid != before.master_pid
    assert master_node("squares") == there
    ended_well(on_ray, process)
    as_undisturbed(on_ray, undisturbed)
    assert launched(on_ray) == []
    assert on_ray.result()["recoveries"] == []


def submit_from(node: str, job: Job, *overrides: str) -> None:
    """`rolemesh run --detach` in a task of Ray on `node`: there the master begins."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def submit(folder: str, arguments: list[str]) -> tuple[int, str]:
        import contextlib
        import io
        import os

        from rolemesh.cli import main

        os.chdir(folder)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            return main(arguments), out.getvalue()

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(submit).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    code, out = ray.get(task.remote(str(job.folder), ["run", "job.yaml", "--detach", *overrides, *job.backend]))
    assert code == 0, out


def test_the_masters_node_may_go(on_ray: Job, away: AwayNodes, undisturbed: str) -> None:
    away.have(2)
    lost = min(away.nodes)
    apart = "placement={use: separation, options: {apart: [[source, work, sink]]}}"
    submit_from(lost, on_ray, *SLOW, "roles.work.options.kwargs.sleep=0.1", IN_MEMORY_ONLY, apart)
    before = on_ray.running(10)
    elsewhere = {str(rank.ref) for rank in before.ranks if rank.node != lost}
    assert 0 < len(elsewhere) < len(before.ranks)
    assert master_node("squares") == lost
    away.lose(lost)
    until(lambda: of_kind(on_ray, "master_recovered"), "another master")
    after = on_ray.running()
    assert master_node("squares") != lost
    assert after.epoch == 2
    assert {name: pids(after)[name] for name in elsewhere} == {name: pids(before)[name] for name in elsewhere}
    until(lambda: (on_ray.run_dir / "result.json").exists(), "the job ends")
    as_undisturbed(on_ray, undisturbed)
    assert on_ray.result()["status"] == "done"
    assert [line["step"] for line in on_ray.metrics()] == list(range(STEPS))


def master_node(job: str) -> str:
    """Return the node on which Ray runs the job's master."""
    return state_of(master_actor(job)).node


@pytest.mark.soak
@pytest.mark.parametrize("killed", ["master", "agent", "both"])
def test_a_master_or_an_agent_that_takes_long_to_come_back_costs_no_rank(
    make_job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: str, killed: str
) -> None:
    """On a busy machine Ray starts a process within tens of seconds. Agents and the driver wait 10 for a master."""
    closed = hold_starts(tmp_path, monkeypatch)
    job = make_job(backend=(), extra=LADDER)
    process = job.start(*SLOW, "roles.work.options.kwargs.sleep=0.2", "engine.options.snapshots.replicas=0")
    before = job.running(10)
    closed.touch()
    agents = [agent.pid for agent in before.agents] if killed != "master" else []
    masters = [before.master_pid] if killed != "agent" else []
    for pid in [*idle_workers(before.master_pid), *agents, *masters]:
        os.kill(pid, signal.SIGKILL)
    time.sleep(16.0)
    assert masters == [] or job.status() is None
    closed.unlink()
    until(lambda: of_kind(job, "master_recovered") or not masters, "another master")
    until(lambda: len(of_kind(job, "agent_up")) > 1 or not agents, "another agent")
    after = job.running()
    assert pids(after) == pids(before)
    said = ended_well(job, process)
    assert masters == [] or "the master has been silent for 10 s: it is waited for" in said
    as_undisturbed(job, undisturbed)
    assert job.result()["recoveries"] == []


@pytest.mark.soak
@pytest.mark.parametrize("master_too", [False, True], ids=["node", "node and master"])
@pytest.mark.parametrize("whose", ["an agent that was killed", "a rank that moves"])
def test_a_node_that_is_lost_while_its_agent_starts_is_left_at_once(
    on_ray: Job,
    away: AwayNodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: str,
    whose: str,
    master_too: bool,
) -> None:
    """Its worker may take `start_timeout_s`, 600 s, and would be waited for. Only nodes `away` start none meanwhile."""
    away.have(0)
    closed = hold_starts(tmp_path, monkeypatch)
    away.have(3)
    process = on_ray.start(*SLOW, "roles.work.options.kwargs.sleep=0.2", ON_AWAY)
    before = on_ray.running(10)
    asked, lost = of_kind(on_ray, "agent_started"), node_of(before, "sink")
    closed.touch()
    for node in away.nodes.values():
        for pid in children_at_hand(node.all_processes["raylet"][0].process.pid):
            os.kill(pid, signal.SIGKILL)
    if whose == "a rank that moves":
        away.lose(lost)
    else:
        os.kill(next(agent.pid for agent in before.agents if agent.node == lost), signal.SIGKILL)
    until(lambda: len(of_kind(on_ray, "agent_started")) > len(asked), "an agent starts")
    starts = of_kind(on_ray, "agent_started")[-1]["data"]
    assert (starts["node"] != lost) == (whose == "a rank that moves")
    if master_too:
        os.kill(before.master_pid, signal.SIGKILL)
    away.lose(starts["node"])
    until(lambda: [e for e in of_kind(on_ray, "agent_lost") if e["data"]["node"] == starts["node"]], "its loss")
    assert sum(e["data"]["agent"] == starts["agent"] for e in of_kind(on_ray, "agent_up")) == starts["incarnation"] - 1
    closed.unlink()
    ended_well(on_ray, process)
    away.have(0)
    as_undisturbed(on_ray, undisturbed)
    assert of_kind(on_ray, "rolled_back") == []
    recoveries = on_ray.result()["recoveries"]
    assert [(each["level"], each["restarted"]) for each in recoveries] == [("node", ["sink/0"])] * len(recoveries)
    assert [each["outcome"] for each in recoveries] == [*["merged"] * (whose == "a rank that moves"), "recovered"]


def hold_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes that a Ray started from now on starts wait while the returned file is there."""
    closed = folder / "closed"
    (folder / "sitecustomize.py").write_text(
        f"import os, time\nwhile os.path.exists({str(closed)!r}):\n    time.sleep(0.1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return closed


def idle_workers(sibling: int) -> list[int]:
    """The processes that the Ray of this one keeps at hand, to become actors."""
    return children_at_hand(psutil.Process(sibling).ppid())


def children_at_hand(raylet: int) -> list[int]:
    """The processes that this raylet keeps at hand."""
    found = psutil.process_iter(["ppid", "cmdline"])  # passes over those that end meanwhile
    return [p.pid for p in found if p.info["ppid"] == raylet and (p.info["cmdline"] or [""])[0].startswith("ray::IDLE")]


def test_a_killed_agent_actor_costs_no_rank(on_ray: Job, away: AwayNodes, undisturbed: str) -> None:
    away.have(1)
    process = on_ray.start(*SLOW, "roles.work.options.kwargs.sleep=0.1", ON_AWAY, IN_MEMORY_ONLY)
    before = on_ray.running(20)
    agent = next(agent for agent in before.agents if agent.node == node_of(before, "sink"))
    os.kill(agent.pid, signal.SIGKILL)
    killed = time.time()
    ups = [event["time"] for event in of_kind(on_ray, "agent_up")]
    until(lambda: len(of_kind(on_ray, "agent_up")) > len(ups), "a new agent")
    took = max(event["time"] for event in of_kind(on_ray, "agent_up")) - killed
    print(f"under control after {took:.3f} s")
    ended_well(on_ray, process)
    as_undisturbed(on_ray, undisturbed)
    assert on_ray.result()["recoveries"] == []
    assert {event["data"]["pid"] for event in of_kind(on_ray, "rank_up")} == set(pids(before).values())


@pytest.mark.soak
def test_an_agent_actor_that_ray_kills_costs_no_rank(on_ray: Job, undisturbed: str) -> None:
    """As `ray.kill` does it, the worker ends by itself, and Ray kills what it has started."""
    import ray

    process = on_ray.start(*SLOW, "roles.work.options.kwargs.sleep=0.1", "engine.options.snapshots.replicas=0")
    before = on_ray.running(20)
    handle = next(iter(agent_actors("squares").values()))
    ray.kill(handle)
    until(lambda: len(of_kind(on_ray, "agent_up")) > len(before.agents), "a new agent")
    ended_well(on_ray, process)
    as_undisturbed(on_ray, undisturbed)
    assert on_ray.result()["recoveries"] == []
    assert {event["data"]["pid"] for event in of_kind(on_ray, "rank_up")} == set(pids(before).values())
