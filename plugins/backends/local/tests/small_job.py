"""A supervisor with a master and agents that obey a test: ``python small_job.py FOLDER JOB_ID``.

The master answers commands (msgpack lists) at ``ipc://FOLDER/master``. It writes all messages into ``FOLDER/told``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path

import msgspec
import zmq

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh_durable.protocol.launcher import AgentPlace, AgentStart
from rolemesh_local.launcher import LocalLauncher, agent_identity, agents_address
from rolemesh_local.messages import Link, Refuse, SupervisorStart, ToMaster
from rolemesh_local.relay import Relay
from rolemesh_local.supervisor import Supervisor
from rolemesh_processes.guard import AgentGuard

HOLD_S = 5.0
NODES = ClusterView(tuple(NodeView(f"node-{i}") for i in range(3)))


class AgentSettings(msgspec.Struct):
    """The settings of an agent, in place of an `AgentConfig`."""

    job: str
    agent: str
    incarnation: int


def run_agent(config: bytes, folder: Path) -> int:
    """Count aloud, echo each message, and end at the message ``end``."""
    settings = msgspec.msgpack.decode(config, type=AgentSettings)
    guard = AgentGuard(settings.job, settings.agent, settings.incarnation, HOLD_S)
    (guard.shm / f"was-here-{settings.incarnation}").touch()
    over = threading.Event()
    echoes: list[bytes] = []

    def deliver(message: bytes) -> None:
        over.set() if message == b"end" else echoes.append(message)

    relay = Relay(agents_address(folder), agent_identity(settings.agent, settings.incarnation))
    relay.start(deliver)
    count = 0
    while not over.wait(0.02):
        count += 1
        relay.send(f"{settings.incarnation} counts {count} pid {os.getpid()}".encode())
        while echoes:
            relay.send(f"{settings.incarnation} echoes {echoes.pop(0).decode()}".encode())
    relay.send(f"{settings.incarnation} ends".encode())
    relay.stop()
    guard.close()
    return 0


def run_master(start: SupervisorStart, link: Link[ToMaster], folder: Path, attempt: int) -> int:
    """Obey the test."""
    job = start.bundle.decode()
    if (folder / "fail").exists() and attempt > 0:
        raise RuntimeError("told to fail")
    launcher = LocalLauncher(job, start.nodes, folder, link)
    told = (folder / "told").open("a", buffering=1)

    def write(*line: object) -> None:
        told.write(json.dumps([attempt, *line]) + "\n")

    launcher.open(lambda agent, message: write("received", agent, message.decode()), lambda *line: write("lost", *line))
    context = zmq.Context()
    control = context.socket(zmq.REP)
    control.bind(f"ipc://{folder}/master")
    write("up", os.getpid())
    while True:
        launcher.beat()
        if not control.poll(100):
            continue
        answer: object = None
        match msgspec.msgpack.decode(control.recv()):
            case ["start", agent, incarnation, node]:
                config = msgspec.msgpack.encode(AgentSettings(job, agent, incarnation))
                launcher.start([AgentStart(AgentPlace(agent, node, {}), incarnation, config)])
            case ["attach", agents]:
                places = [AgentPlace(agent, node, {}) for agent, (_, node) in agents.items()]
                launcher.attach(places, {agent: number for agent, (number, _) in agents.items()})
            case ["send", agent, incarnation, text]:
                launcher.send(agent, incarnation, text.encode())
            case ["kill", agent, incarnation]:
                launcher.kill(agent, incarnation)
            case ["lose", node]:
                launcher.lose(node)
            case ["nodes"]:
                answer = [node.id for node in launcher.cluster().nodes]
            case ["refuse", why]:
                link.send(Refuse(why))
                return 1
            case ["raise"]:
                raise RuntimeError("told to fail")
            case ["end"]:
                launcher.stop()
                control.send(msgspec.msgpack.encode(answer))
                context.destroy(linger=100)
                return 0
        control.send(msgspec.msgpack.encode(answer))


def refuse_forks(*_: object) -> None:
    """Make the system refuse this process each fork, as it does when a control group has reached ``pids.max``."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    os.setresuid(65534, 65534, 0)


def main() -> int:
    signal.signal(signal.SIGUSR1, refuse_forks)
    signal.signal(signal.SIGUSR2, lambda *_: os.setresuid(0, 0, 0))
    folder, job = Path(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start = SupervisorStart(job.encode(), NODES)
    supervisor = Supervisor(start, folder, lambda name: folder / f"{name}.log", run_master, run_agent)
    finished = supervisor.run()
    print(supervisor.gave_up, flush=True)
    return 0 if finished else 1


if __name__ == "__main__":
    sys.exit(main())
