"""The Ray backend on a real Ray of several nodes, with small actors in place of master and agents."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
from tests.waiting import HANG_S, until

from rolemesh.errors import BackendError
from rolemesh_durable.protocol.launcher import AgentPlace, AgentStart
from rolemesh_ray import launcher as launchers
from rolemesh_ray.actors import MasterWatch
from rolemesh_ray.launcher import RayLauncher
from rolemesh_ray.names import NAMESPACE, agent_actors, master_name, placement_groups
from rolemesh_ray.nodes import living_nodes, preferring, state_of

pytestmark = pytest.mark.ray


class SmallMaster:
    """A master that keeps the messages of agents."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def received(self, agent: str, message: bytes) -> None:
        self.heard.append((agent, message.decode()))

    def said(self) -> list[tuple[str, str]]:
        return self.heard

    def pid(self) -> int:
        return os.getpid()

    def silent_s(self) -> float:
        return 0.0


class SmallAgent:
    """An agent that echoes each message, and ends at the message ``end``."""

    def __init__(self, config: bytes, master: Any) -> None:
        self.config, self.master = config.decode(), master
        self.over = threading.Event()
        master.received.remote("agent", f"{self.config} is up, pid {os.getpid()}".encode())

    def deliver(self, message: bytes) -> None:
        if message == b"end":
            self.over.set()
        self.master.received.remote("agent", f"{self.config} hears {message.decode()}".encode())

    def wait(self) -> None:
        self.over.wait()


@pytest.fixture(scope="module")
def cluster(ray_cluster: Any) -> Iterator[Any]:
    """Three nodes of two CPUs."""
    third = ray_cluster.add_node(num_cpus=2)
    ray_cluster.wait_for_nodes()
    yield ray_cluster
    ray_cluster.remove_node(third)
    ray_cluster.wait_for_nodes()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Hands:
    """The launcher of a master."""

    def __init__(self, job: str, master: Any, ahead: Sequence[AgentStart] = ()) -> None:
        self.job, self.master = job, master
        self.losses: list[tuple[str, int, str, bool]] = []
        self.launcher = RayLauncher(job, f"t{job}", master, SmallAgent)
        if ahead:
            self.launcher.start_ahead(ahead)
        self.launcher.open(lambda agent, message: None, lambda *loss: self.losses.append(loss))

    def start(self, agent: str, incarnation: int, node: str, cpu: float = 1.0) -> int:
        """Start an agent and return its pid."""
        self.launcher.start([start(agent, incarnation, node, cpu)])
        return self.up(agent, incarnation)

    def up(self, agent: str, incarnation: int) -> int:
        return int(self.hears(f"{agent}/{incarnation} is up").split()[-1])

    def hears(self, text: str) -> str:
        find = lambda: [said for _, said in ray.get(self.master.said.remote()) if said.startswith(text)]  # noqa: E731
        return str(until(find, f"{text!r} is heard")[-1])

    def loss(self, agent: str, incarnation: int) -> tuple[str, bool]:
        find = lambda: [loss[2:] for loss in self.losses if loss[:2] == (agent, incarnation)]  # noqa: E731
        found = until(find, f"{agent}/{incarnation} is lost")
        return str(found[0][0]), bool(found[0][1])


def start(agent: str, incarnation: int, node: str, cpu: float = 1.0) -> AgentStart:
    return AgentStart(AgentPlace(agent, node, {"cpu": cpu, "gpu": 0.0}), incarnation, f"{agent}/{incarnation}".encode())


@pytest.fixture
def hands(cluster: Any) -> Iterator[Hands]:
    job = f"j{secrets.token_hex(3)}"
    master = ray.remote(SmallMaster).options(num_cpus=0, max_restarts=-1, name=master_name(job), namespace=NAMESPACE)
    handle = master.remote()
    made = Hands(job, handle)
    yield made
    made.launcher.stop()
    ray.kill(handle)
    assert not agent_actors(job)
    until(lambda: not placement_groups(job), "nothing is reserved any more")


def nodes() -> list[str]:
    """The living nodes, the head first."""
    return [node.id for node in living_nodes().nodes]


def test_agents_start_together_and_messages_reach_only_the_incarnation_that_is_meant(hands: Hands) -> None:
    one, other = nodes()[:2]
    hands.launcher.start([start("a", 1, one), start("b", 1, other)])
    hands.up("a", 1)
    hands.up("b", 1)
    assert len(placement_groups(hands.job)) == 1
    hands.launcher.send("a", 2, b"for another")
    hands.launcher.send("a", 1, b"hello")
    hands.hears("a/1 hears hello")
    assert not [said for _, said in ray.get(hands.master.said.remote()) if "for another" in said]


def test_an_agent_that_ends_by_itself_is_lost_too(hands: Hands) -> None:
    hands.start("a", 1, nodes()[0])
    hands.launcher.send("a", 1, b"end")
    assert hands.loss("a", 1) == ("the agent has ended", False)


def test_a_stopped_agent_is_killed_and_its_next_incarnation_lives_in_the_same_bundle(hands: Hands) -> None:
    node = nodes()[1]
    old = hands.start("a", 1, node, cpu=2.0)
    os.kill(old, signal.SIGSTOP)
    hands.launcher.kill("a", 1)
    _, node_lost = hands.loss("a", 1)
    assert not node_lost
    until(lambda: gone(old), "the stopped process is gone")
    assert hands.start("a", 2, node, cpu=2.0) != old
    assert len(placement_groups(hands.job)) == 1


def test_starting_the_next_incarnation_ends_the_one_before(hands: Hands) -> None:
    old = hands.start("a", 1, nodes()[0], cpu=2.0)
    os.kill(old, signal.SIGSTOP)
    hands.start("a", 2, nodes()[0], cpu=2.0)
    until(lambda: gone(old), "the incarnation before has been killed")
    hands.launcher.start([start("a", 2, nodes()[0], cpu=2.0)])
    hands.launcher.send("a", 2, b"still you?")
    hands.hears("a/2 hears still you?")


def test_the_next_master_finds_living_agents_is_told_of_dead_ones_and_ends_unknown_ones(hands: Hands) -> None:
    one, other, third = nodes()[:3]
    hands.start("a", 1, one)
    dead = hands.start("b", 1, other)
    stray = hands.start("c", 1, third)
    os.kill(dead, signal.SIGKILL)
    hands.loss("b", 1)
    successor = Hands(hands.job, hands.master)
    places = [AgentPlace("a", one, {}), AgentPlace("b", other, {}), AgentPlace("d", other, {})]
    successor.launcher.attach(places, {"a": 1, "b": 1, "d": 7})
    why, node_lost = successor.loss("b", 1)
    assert (why.partition(": ")[0], node_lost) == ("the agent's actor is gone", False)
    assert "died" in why
    assert successor.loss("d", 7) == ("the agent's actor is gone", False)
    successor.launcher.send("a", 1, b"hello again")
    successor.hears("a/1 hears hello again")
    until(lambda: gone(stray), "the unknown agent is gone")
    assert {loss[0] for loss in successor.losses} == {"b", "d"}
    os.kill(successor.up("a", 1), signal.SIGKILL)
    assert successor.loss("a", 1)[1] is False
    successor.launcher.stop()


@pytest.mark.soak
def test_a_lost_node_is_reported_and_its_agent_starts_on_a_new_node(hands: Hands, cluster: Any) -> None:
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    hands.start("other", 1, nodes()[0], 0.5)
    hands.start("a", 1, doomed.node_id)
    cluster.remove_node(doomed, allow_graceful=False)
    why, node_lost = hands.loss("a", 1)
    assert node_lost, why
    assert doomed.node_id not in [node.id for node in hands.launcher.cluster().nodes]
    hands.launcher.start([start("a", 2, doomed.node_id)])
    assert hands.loss("a", 2)[1] is True
    spare = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    until(lambda: spare.node_id in [node.id for node in hands.launcher.cluster().nodes], "the spare is seen")
    hands.start("a", 3, spare.node_id)
    os.kill(hands.up("other", 1), signal.SIGKILL)
    assert hands.loss("other", 1)[1] is False
    hands.start("other", 2, nodes()[0], 0.5)
    hands.launcher.stop()
    cluster.remove_node(spare)


def test_a_failed_reservation_starts_nothing_and_gives_all_back(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "RESERVE_TIMEOUT_S", 0.5)
    one, other = nodes()[:2]
    with pytest.raises(BackendError, match="could not reserve"):
        hands.launcher.start([start("a", 1, one), start("b", 1, other, cpu=64.0)])
    assert not agent_actors(hands.job)
    until(lambda: not placement_groups(hands.job), "nothing is reserved any more")
    hands.start("a", 2, one)


def test_agents_that_a_new_master_has_started_ahead_are_those_that_it_is_told_to_start(hands: Hands) -> None:
    one, other = nodes()[:2]
    starts = [start("a", 1, one), start("b", 1, other), start("c", 1, "0" * 56)]
    master = Hands(hands.job, hands.master, ahead=starts[::-1])
    first = [master.up("a", 1), master.up("b", 1)]
    os.kill(first[1], signal.SIGKILL)
    master.loss("b", 1)
    assert [loss[0] for loss in master.losses] == ["b"], "a node that is not there is told when it is to start there"
    master.launcher.start(starts)
    assert master.loss("c", 1)[1] is True
    master.launcher.send("a", 1, b"still you?")
    master.hears("a/1 hears still you?")
    ups = [said for _, said in ray.get(hands.master.said.remote()) if " is up" in said]
    assert sorted(ups) == [f"a/1 is up, pid {first[0]}", f"b/1 is up, pid {first[1]}"]
    assert len(placement_groups(hands.job)) == 1
    master.launcher.start([start("b", 2, other)])
    assert master.up("b", 2)
    master.launcher.stop()


def test_a_start_reports_that_its_early_reservation_failed(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "RESERVE_TIMEOUT_S", 0.5)
    wanted = [start("a", 1, nodes()[0], cpu=64.0)]
    master = Hands(hands.job, hands.master, ahead=wanted)
    with pytest.raises(BackendError, match="could not reserve"):
        master.launcher.start(wanted)
    assert not agent_actors(hands.job)
    master.launcher.stop()


def test_a_stopped_master_is_revived_and_one_that_has_just_started_is_not(hands: Hands) -> None:
    first = ray.get(hands.master.pid.remote())
    watch = MasterWatch(hands.job, come_up_s=60.0)
    assert watch.revive()
    assert ray.get(hands.master.pid.remote()) == first, "one that answers is left alone, whatever clocks say"
    os.kill(first, signal.SIGSTOP)
    assert watch.revive()
    assert until(lambda: answers(hands.master), "the master is back") != first
    until(lambda: gone(first), "the stopped master has been killed")


def test_a_master_starts_on_its_node_every_time_and_elsewhere_once_that_is_lost(cluster: Any) -> None:
    """Ray takes any node for an actor without resources and with a soft affinity."""
    home = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    until(lambda: home.node_id in nodes(), "the node is there")
    time.sleep(1.0)  # the other nodes hear of it
    master = ray.remote(SmallMaster).options(num_cpus=0, max_restarts=-1, **preferring(home.node_id)).remote()
    for _ in range(4):
        pid = until(lambda: answers(master), "it answers")
        assert state_of(master).node == home.node_id
        os.kill(pid, signal.SIGKILL)
        until(lambda: answers(master) not in (0, pid), "it is back")  # noqa: B023
    cluster.remove_node(home, allow_graceful=False)
    until(lambda: answers(master) and state_of(master).node in nodes(), "it is on another node")
    ray.kill(master)


def answers(master: Any) -> int:
    """The pid of a master, 0 if it does not answer."""
    try:
        return int(ray.get(master.pid.remote(), timeout=HANG_S))
    except ray.exceptions.RayError:
        return 0


def test_agents_that_speak_to_a_master_that_is_not_there_go_on(hands: Hands) -> None:
    pid = hands.start("a", 1, nodes()[0])
    first = ray.get(hands.master.pid.remote())
    os.kill(first, signal.SIGKILL)
    for number in range(50):
        hands.launcher.send("a", 1, f"message {number}".encode())
    until(lambda: not gone(pid) and heard_last(hands), "the agent says so to the next master")


def heard_last(hands: Hands) -> bool:
    hands.launcher.send("a", 1, b"are you there?")
    try:
        said = ray.get(hands.master.said.remote(), timeout=HANG_S)
    except ray.exceptions.RayError:
        return False
    return any("are you there?" in text for _, text in said)


DRIVER = """
import os, ray, sys
from rolemesh_ray.actors import in_parts, joined
from rolemesh_ray.names import NAMESPACE

class Keeper:
    def __init__(self, *parts):
        self.bytes = len(joined(parts))
    def about(self):
        return os.getpid(), self.bytes

ray.init(address=sys.argv[1], namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
options = dict(name=sys.argv[2], lifetime="detached", max_restarts=-1, num_cpus=0)
print(*ray.get(ray.remote(Keeper).options(**options).remote(*in_parts(os.urandom(1 << 20))).about.remote()))
"""


def test_the_start_data_of_a_master_outlive_the_command(ray_cluster: Any) -> None:
    name = f"keeper-{secrets.token_hex(4)}"
    command = [sys.executable, "-c", DRIVER, ray_cluster.address, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pid, size = map(int, done.stdout.split())
    keeper = ray.get_actor(name, namespace=NAMESPACE)
    os.kill(pid, signal.SIGKILL)

    def again() -> Any:
        try:
            about = ray.get(keeper.about.remote(), timeout=HANG_S)
        except ray.exceptions.ActorUnavailableError:
            return None  # Ray is about to start it
        return about if about[0] != pid else None

    assert until(again, "another process of it")[1] == size == 1 << 20
    ray.kill(keeper)
