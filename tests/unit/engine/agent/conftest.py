"""A real agent with real zygotes and ranks; the test is its master."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.waiting import HANG_S

from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.agent.agent import Agent
from rolemesh_durable.agent.home import start_agent
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.job import Environment, JobConfig, PluginUse
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan
from rolemesh_durable.protocol.starts import AgentConfig
from rolemesh_processes.guard import remove_agent, shm_folder

CLONE_NEWNS = 0x20000
VERSION = version("rolemesh")


COUNTS = """
class Work:
    def __init__(self, ctx):
        self.made = 0

    def step(self) -> None:
        self.made += 1

    def snapshot(self):
        return {"made": self.made}

    def restore(self, state):
        self.made = state["made"]
"""
"""A role that keeps a state, and does nothing else."""


def record(kind: str, name: str, target: str) -> dict[str, Any]:
    distribution = target.partition(".")[0].partition(":")[0].replace("_", "-")
    return {"kind": kind, "name": name, "distribution": distribution, "version": VERSION, "target": target}


SHM = PluginUse(record("transports", "shm", "rolemesh_dataplane.shm_transport:ShmTransport"), {})
FUNCTION = record("workloads", "function", "rolemesh_function:FunctionWorkload")


class Node:
    """An agent in a thread, and the messages of its master. Roles are classes of the source that a test gives."""

    def __init__(self, root: Path, source: str, operators: dict[str, str], **settings: Any) -> None:
        """`operators`: role → the operator that it calls in each step. `shm`: the size of a `/dev/shm` of its own."""
        self.root, self.epoch, self.timeline = root, 1, 0
        root.mkdir(exist_ok=True)
        self.run_dir = settings.get("run_dir", root)
        (root / "work.py").write_text(source)
        self.job_id = settings.get("job_id") or secrets.token_hex(4)
        self.steps = settings.get("steps", 1000)
        self.targets = dict.fromkeys(operators, "") | {role: f"work.py:{role.capitalize()}" for role in operators}
        calls = tuple(OpCall(i, role, op, f"{role}.{op}", None) for i, (role, op) in enumerate(operators.items()))
        keys = TransportKeys(*(key.decode() for _ in range(2) for key in zmq.curve_keypair()))
        roles = {role: PluginUse(FUNCTION, {"target": target, "kwargs": {}}) for role, target in self.targets.items()}
        environment = Environment(preload=settings.get("preload", ()), env=settings.get("env", {}))
        job = JobConfig(
            LogicalGraph("node", calls, ()), dict.fromkeys(operators, settings.get("size", 1)), self.steps, True,
            snapshots=settings.get("snapshots", SnapshotPlan(enabled=True)), unrepeated=settings.get("stateful", ()),
            name="node", job_id=self.job_id, seed=7, run_dir=str(self.run_dir), base=str(root),
            transports={role: {"local": SHM} for role in roles}, remote="", keys=keys,
            stateful=settings.get("stateful", ()), roles=roles,
            environments=dict.fromkeys(roles, environment), lease_s=settings.get("lease_s", 600.0),
        )  # fmt: skip
        self.config = AgentConfig("node0", "here", "127.0.0.1", job, settings.get("incarnation", 0))
        self.size, self.shm_size = settings.get("size", 1), settings.get("shm", "")
        self.sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.fail_send = False
        self.agent: Agent | None = None
        self.view = Path("/")
        self.last: m.Report | None = None
        up = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(up,), name="node", daemon=True)
        self.thread.start()
        assert up.wait(HANG_S)
        if self.error is not None:
            raise self.error

    @property
    def shm(self) -> Path:
        """The agent's folder in shared memory, as the agent sees it."""
        return self.view / str(shm_folder(self.job_id, "node0")).lstrip("/")

    def _run(self, up: threading.Event) -> None:
        try:
            if self.shm_size:
                assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
                self.view = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/root")
                mount = f"mount --make-rprivate / && mount -t tmpfs -o size={self.shm_size} tmpfs /dev/shm"
                subprocess.run(["sh", "-c", mount], check=True)
            self.agent = start_agent(self.config, self._send)
            up.set()
            self.agent.run()
        except BaseException as error:
            self.error = error
        finally:
            up.set()

    def _send(self, data: bytes) -> None:
        if self.fail_send:
            raise OSError("the test has cut this agent's tongue")
        self.sent.put(m.decode_agent_to_master(data))

    def deliver(self, message: m.MasterToAgent) -> None:
        assert self.agent is not None
        self.agent.deliver(m.encode(message))

    def launch(self, role: str, rank: int = 0, generation: int = 0, **fields: Any) -> None:
        ranks = (m.RankLaunch(role, rank, self.size, rank, self.size, generation, **fields),)
        self.deliver(m.Launch(self.epoch, self.timeline, ranks))

    def until(self, condition: Callable[[m.Report], Any], what: str) -> Any:
        """The first true thing that `condition` says of a report that comes."""
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            if self.error is not None:
                raise self.error
            with contextlib.suppress(queue.Empty):
                message = self.sent.get(timeout=0.1)
                if isinstance(message, m.Report):
                    self.last = message
                    if found := condition(message):
                        return found
        raise AssertionError(f"{what}: not within {HANG_S:.0f} s; the last report: {self.last}")

    def rank(self, role: str, state: str, rank: int = 0, generation: int = 0) -> m.RankReport:
        """Wait until the rank is in `state`."""

        def of(report: m.Report) -> m.RankReport | None:
            same = (
                r for r in report.ranks if (r.role, r.rank, r.generation, r.state) == (role, rank, generation, state)
            )
            return next(same, None)

        found: m.RankReport = self.until(of, f"{role}/{rank}/{generation} is {state}")
        return found

    def run(self, role: str, granted: int, rank: int = 0, generation: int = 0) -> None:
        """Connect a rank that is up, and let it run."""
        up = self.rank(role, "up", rank, generation)
        self.epoch += 1
        self.deliver(m.Addresses(self.epoch, self.epoch, -1, (m.Peer(role, rank, "here", up.addresses, generation),)))
        self.advance(granted)

    def advance(self, granted: int, committed: int = -1) -> None:
        self.deliver(m.Watermarks(self.epoch, self.timeline, granted, committed))

    def stop(self, grace_s: float = 5.0) -> None:
        self.deliver(m.Stop(self.epoch, grace_s))

    def log(self, role: str, rank: int = 0) -> str:
        path = self.run_dir / "logs" / f"{role}-{rank}.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        if self.thread.is_alive():
            self.stop(0.0)
            self.thread.join(HANG_S)
        if self.agent is not None:
            self.agent._clean_up()
        remove_agent(self.job_id, "node0")


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    """Starts an agent: ``node(source, {role: operator}, …)``, see `Node`."""
    made: list[Node] = []
    root = Path(tempfile.mkdtemp(prefix="rolemesh-test-"))

    def start(source: str, operators: dict[str, str], **settings: Any) -> Node:
        made.append(Node(root / "run", source, operators, **settings))
        return made[-1]

    yield start
    for each in reversed(made):
        each.close()
    shutil.rmtree(root)
