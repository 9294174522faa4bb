"""Several Ray nodes with GPUs and labels: who sees which device, who is where, and who may talk to whom."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import ray
import zmq
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind
from tests.waiting import until

pytestmark = pytest.mark.ray

Make = Callable[..., Job]
SHOW = 'print("seen", os.environ["CUDA_VISIBLE_DEVICES"], ctx.gpus, ctx.share, ctx.node)'
ENDLESS = ("steps=100000", "roles.work.options.kwargs.sleep=0.01")


@pytest.fixture(scope="module")
def racks(ray_cluster: Any) -> Iterator[dict[str, str]]:
    """Three more nodes with 4 CPUs and 3 GPUs each, in the racks a, b and c: the rack of each by its id."""
    added = {rack: ray_cluster.add_node(num_cpus=4, num_gpus=3, labels={"rack": rack}) for rack in "abc"}
    ray_cluster.wait_for_nodes()
    yield {node.node_id: rack for rack, node in added.items()}
    for node in added.values():
        ray_cluster.remove_node(node)


@pytest.fixture
def job(make_job: Make, ray_address: str) -> Job:
    """The three roles, whose ranks say at their start what they see."""
    made = make_job(backend=("--address", ray_address))
    text = (made.folder / "roles.py").read_text()
    for line in (
        "self.made = 0",
        "self.ctx, self.sleep = ctx, sleep",
        "self.ctx, self.total, self.calls = ctx, 0.0, 0",
    ):
        assert line in text
        text = text.replace(line, f"{line}\n        {SHOW}", 1)
    (made.folder / "roles.py").write_text(text)
    return made


def done(job: Job, *overrides: str) -> None:
    ended = job.run(*overrides)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def seen(job: Job) -> dict[tuple[str, int], tuple[str, str, float, str]]:
    """Rank → ``CUDA_VISIBLE_DEVICES``, `RankContext.gpus`, `.share` and `.node`."""
    found = {}
    for path in (job.run_dir / "logs").glob("*-*.log"):
        role, _, rank = path.stem.rpartition("-")
        if rank.isdigit():
            (line,) = [line for line in path.read_text().splitlines() if line.startswith("seen ")]
            devices, gpus, share, node = line.removeprefix("seen ").replace(", ", ",").split(" ")
            found[role, int(rank)] = (devices, gpus, float(share), node)
    return found


def planned(job: Job) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the entry of each rank in ``plan.json``."""
    plan = json.loads((job.run_dir / "plan.json").read_text())
    return {(rank["role"], rank["rank"]): rank for rank in plan["ranks"]}


# --------------------------------------------------------------------------------------------------- devices and labels


@pytest.mark.soak
def test_ranks_are_in_the_racks_and_see_the_devices_of_the_plan(job: Job, racks: dict[str, str]) -> None:
    options = "{spread: {work: label.rack, source: label.rack}, nodes: {sink: {rack: c}}}"
    sizes = ("roles.work.world_size=3", "roles.source.world_size=3")
    gpus = ("roles.work.resources.gpu=2", "roles.source.resources.gpu=1")
    done(job, *sizes, *gpus, f"placement={{use: separation, options: {options}}}")
    plan, found = planned(job), seen(job)
    assert {key: entry[0] for key, entry in found.items()} == {
        key: ",".join(map(str, rank["gpus"])) for key, rank in plan.items()
    }
    assert [found["work", rank][1] for rank in range(3)] == ["(0,1)"] * 3, "a rank counts its own devices from 0"
    devices = [(entry[3], gpu) for entry in found.values() for gpu in entry[0].split(",") if gpu]
    assert len(devices) == len(set(devices)) == 9, "no device is given away twice"
    at = {key: racks[entry[3]] for key, entry in found.items()}
    assert {at["work", rank] for rank in range(3)} == {at["source", rank] for rank in range(3)} == {"a", "b", "c"}
    assert at["sink", 0] == "c"


@pytest.mark.usefixtures("racks")
def test_a_label_that_no_ray_node_has_starts_nothing(job: Job) -> None:
    refused = job.run("placement={use: separation, options: {nodes: {sink: {rack: d}}}}")
    assert refused.returncode == 2
    assert "sink needs nodes with rack=d" in refused.stderr
    assert "rack is one of a, b, c" in refused.stderr
    assert not job.run_dir.exists()


@pytest.mark.soak
@pytest.mark.usefixtures("racks")
def test_roles_that_share_a_device_both_see_it_and_know_their_shares(job: Job) -> None:
    group = "{roles: [work, source], ratio: {work: 1, source: 1}, shares: {work: 0.5, source: 0.25}}"
    gpus = [f"roles.{role}.resources.gpu=1" for role in ("work", "source")]
    done(job, "roles.source.world_size=2", *gpus, f"placement={{use: collocation, options: {{groups: [{group}]}}}}")
    plan, found = planned(job), seen(job)
    for rank in range(2):
        work, source = found["work", rank], found["source", rank]
        assert work[0] == source[0] == str(plan["work", rank]["gpus"][0])
        assert (work[2], source[2]) == (0.5, 0.25)
        assert work[3] == source[3] == plan["work", rank]["node"]
    assert len({(found["work", rank][3], found["work", rank][0]) for rank in range(2)}) == 2, "two slots, two devices"
    assert found["sink", 0][0] == "", "who asks for no device sees none"


@pytest.mark.soak
def test_halves_of_a_device_are_of_one_that_nobody_else_holds(job: Job, racks: dict[str, str]) -> None:
    node = next(node for node, rack in racks.items() if rack == "b")

    @ray.remote(num_cpus=0, num_gpus=1, label_selector={"ray.io/node-id": node})
    class Neighbour:
        def devices(self) -> list[str]:
            return list(ray.get_runtime_context().get_accelerator_ids()["GPU"])

    neighbour = Neighbour.remote()
    (taken,) = ray.get(neighbour.devices.remote())
    at = "placement={use: separation, options: {nodes: {work: {rack: b}}}}"
    process = job.start(*ENDLESS, "roles.work.resources.gpu=0.5", at)
    job.running(3)
    found = seen(job)
    assert found["work", 0][3] == found["work", 1][3] == node
    assert found["work", 0][0] == found["work", 1][0]
    assert found["work", 0][0] in {"0", "1", "2"} - {taken}
    assert ray._private.state.state.available_resources_per_node()[node]["GPU"] == 1.0
    assert job.cli("stop", "squares").returncode == 0
    process.wait()
    ray.kill(neighbour)


# --------------------------------------------------------------------------------------------------------------- edges

APART = "placement={use: separation, options: {apart: [[source, work, sink]]}}"


def listening(pid: int) -> list[tuple[str, int]]:
    return [c.laddr for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def talking(pid: int, ports: set[int]) -> Counter[int]:
    """Established connections of a process to these ports, by port."""
    found = psutil.Process(pid).net_connections("tcp")
    return Counter(c.raddr.port for c in found if c.status == psutil.CONN_ESTABLISHED and c.raddr.port in ports)


@pytest.mark.soak
@pytest.mark.usefixtures("racks")
def test_nodes_talk_over_tcp_and_a_peer_without_the_key_is_refused_and_counted(job: Job) -> None:
    process = job.start(*ENDLESS, APART)
    status = job.running(3)
    pid = {str(rank.ref): rank.pid for rank in status.ranks}
    assert len({rank.node for rank in status.ranks}) == 3
    inbox = {name: listening(of)[0] for name, of in pid.items()}
    port_of = {address[1]: name for name, address in inbox.items()}
    asked = {port_of[port] for port in talking(pid["sink/0"], set(port_of))}
    assert {"work/0", "work/1"} <= asked, "the sink reaches the other node's ranks over TCP"

    host, port = inbox["work/0"]
    with zmq.Context() as context:
        for told, keys in enumerate((None, zmq.curve_keypair()), 1):
            with context.socket(zmq.PUSH) as stranger:
                stranger.linger = 0
                if keys is not None:
                    stranger.curve_serverkey, _ = zmq.curve_keypair()
                    stranger.curve_publickey, stranger.curve_secretkey = keys
                stranger.connect(f"tcp://{host}:{port}")
                stranger.send(b"a frame that would end a rank that reads it")
                until(lambda n=told: counted(job) >= n, f"{told} connections are refused")
    assert job.cli("stop", "squares").returncode == 0
    assert process.wait() == 130 or process.returncode == 0
    assert job.result()["refused_connections"] >= 2
    assert of_kind(job, "failure") == []
    assert "has refused" in (process.stdout.read() if process.stdout else "")


def counted(job: Job) -> int:
    """How many connections the journal says were refused on the node of work/0."""
    return max((event["data"]["count"] for event in of_kind(job, "connections_refused")), default=0)
