"""Whole ranks in processes of their own, as their agent starts them; the test is agent and master, and kills."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import zmq
from tests.waiting import HANG_S

from rolemesh.graph.logical import LogicalGraph
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.agent.persister import Persister
from rolemesh_durable.extensions.shipped import SHIPPED
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.job import JobConfig, PluginUse
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan
from rolemesh_durable.protocol.starts import RankStart
from rolemesh_durable.rank.frames import encode_control
from rolemesh_durable.rank.main import main, prepare
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_processes.openmp import end_threads
from rolemesh_runtime.metrics import Metrics

HERE = Path(__file__).parent
VERSION = version("rolemesh")


def record(kind: str, name: str, target: str) -> dict[str, Any]:
    distribution = target.partition(".")[0].partition(":")[0].replace("_", "-")
    return {"kind": kind, "name": name, "distribution": distribution, "version": VERSION, "target": target}


SHM = PluginUse(record("transports", "shm", "rolemesh_dataplane.shm_transport:ShmTransport"), {})
TCP = PluginUse(record("transports", "tcp", "rolemesh_dataplane.tcp_transport:TcpTransport"), {})
FUNCTION = record("workloads", "function", "rolemesh_function:FunctionWorkload")


def _child(start: bytes, log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout = sys.stderr = os.fdopen(out, "w", buffering=1)
    os._exit(main(prepare(start), SHIPPED))


@dataclass
class Rank:
    """A rank as the test knows it."""

    launch: m.RankLaunch
    process: Any = None
    status_page: StatusPage | None = None
    peer: m.Peer | None = None
    socket: Any = None
    ready: bool = False
    sha: str | None = None
    dead: bool = False


@dataclass
class Village:
    """A job's ranks. `tick` is one turn of their agent and master; everything else is built on it."""

    root: Path
    shm: Path
    graph: LogicalGraph
    sizes: dict[str, int]
    classes: dict[str, tuple[str, dict[str, Any]]]
    stateful: tuple[str, ...]
    steps: int
    snapshots: SnapshotPlan = field(default_factory=lambda: SnapshotPlan(enabled=True))
    collective: tuple[str, ...] = ()
    nodes: dict[tuple[str, int], str] = field(default_factory=dict)
    origin: str = ""
    origin_step: int = -1
    retention_bytes: int = 1 << 30
    metrics_every: int = 1
    repeats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        pairs = [key.decode() for _ in range(2) for key in zmq.curve_keypair()]
        self.job = JobConfig(
            self.graph, self.sizes, self.steps, True, self.retention_bytes, self.snapshots,
            tuple(role for role in self.stateful if role not in self.repeats), name="restarts", job_id="j", seed=7,
            run_dir=str(self.root), base=str(HERE), keys=TransportKeys(*pairs), stateful=self.stateful,
            transports={role: {"local": SHM, "remote": TCP} for role in self.sizes},
            remote="remote" if self.nodes else "",
        )  # fmt: skip
        self.context = zmq.Context()
        self.reports = self.context.socket(zmq.PULL)
        self.reports.set_hwm(0)
        self.address = f"ipc://{self.root}/agent"
        self.reports.bind(self.address)
        self.committed = self.origin_step
        self.max_granted = self.steps - 1
        self.lines: dict[tuple[str, int], Metrics] = {}
        self.failures: list[Any] = []
        self.ranks: dict[tuple[str, int], Rank] = {}
        self.killed = 0
        self.persisting = False
        self.wired: tuple[Any, ...] = ()
        self.told = (-2, -2, -2)
        self.fork = get_context("fork")

    # ------------------------------------------------------------------------------------------------- starting

    def start(self) -> None:
        restore = "disk" if self.origin else "none"
        for role, size in self.sizes.items():
            for rank in range(size):
                self._launch(role, rank, 0, self.origin_step, restore)

    def _launch(self, role: str, rank: int, generation: int, resume: int, restore: Any) -> None:
        name, kwargs = self.classes[role]
        options = {"target": f"roles.py:{name}", "kwargs": kwargs, **self._options(role)}
        launch = m.RankLaunch(
            role, rank, self.sizes[role], rank, self.sizes[role], generation,
            collective=role in self.collective, resume=resume, restore=restore,
            origin=self.origin, origin_step=self.origin_step,
        )  # fmt: skip
        job = msgspec.structs.replace(self.job, roles={role: PluginUse(FUNCTION, options)})
        status_page = self._status_page(role, rank)
        mates = tuple(str(self._status_page(role, r)) for r in range(self.sizes[role]) if r != rank)
        known = self.ranks[role, rank] = Rank(launch, status_page=StatusPage.create(status_page))
        start = RankStart(
            launch, job, self.nodes.get((role, rank), "here"), "127.0.0.1", str(self._shm(role, rank)),
            str(self.root), str(self.root), self.address, str(status_page), mates if role in self.collective else (),
        )  # fmt: skip
        encoded = msgspec.msgpack.encode(start)
        known.process = self.fork.Process(target=_child, args=(encoded, str(self.root / f"log-{role}-{rank}")))
        end_threads()  # what other tests of this process have computed with
        known.process.start()

    def _options(self, role: str) -> dict[str, Any]:
        return {}

    def _status_page(self, role: str, rank: int) -> Path:
        return self.root / f"status-{role}-{rank}"

    def _shm(self, role: str, rank: int) -> Path:
        return self.shm / self.nodes.get((role, rank), "here")

    # ------------------------------------------------------------------------------------------------- one turn

    def tick(self) -> None:
        """Hear the ranks, wire those that are up, tell all how far everything is."""
        if self.reports.poll(2):
            while self.reports.poll(0):
                self._hear(m.decode_rank_to_agent(self.reports.recv()))
        assert not self.failures, self.failures
        peers = tuple(rank.peer for rank in self.ranks.values() if rank.peer is not None)
        if peers != self.wired and len(peers) == len(self.ranks):
            self.wired = peers
            self._tell(m.Connect(peers))
        durable = [self.durable(key) for key in self.ranks]
        self.committed = max(self.committed, min(durable))
        ready = all(rank.ready for rank in self.ranks.values())
        granted = min(self.max_granted, self.steps - 1) if ready or self.told[1] >= 0 else -1
        if (now := (self.committed, granted, self.published())) != self.told:
            self.told = now
            self._unpin()  # first: a rank that still sees a pin at the last message keeps its log for ever
            self._tell(self._advance())

    def _advance(self) -> m.Watermarks:
        groups = {role: min(self.durable((role, rank)) for rank in range(self.sizes[role])) for role in self.collective}
        committed, granted, published = self.told
        return m.Watermarks(1, 0, granted, committed, published, -1, groups, cuts=((0, self.metrics_every),))

    def persist(self, step: int) -> str:
        """Run, not much further, until the snapshot of `step` is on disk; its folder. Before anything else."""
        self.max_granted = min(step + 1, self.steps - 1)
        persister = Persister(self._shm(*next(iter(self.ranks))), self.root, self.sizes)
        persister.start()
        self.persisting = True
        found: dict[tuple[str, int], m.Persisted] = {}

        def on_disk() -> bool:
            for key in self.ranks:
                persister.look(*key)
            found.update({r.ref: r for r in persister.results() if r.step == step})
            return len(found) == len(self.ranks)

        try:
            self.until(on_disk)
        finally:
            persister.close()
        files = {name: value for each in found.values() for name, value in each.files.items()}
        manifest = disk.Manifest("restarts", "j", step, self.steps, self.sizes, files)
        attempts = {name: each.attempt for each in found.values() for name in each.files}
        return str(disk.write_manifest(self.root, manifest, attempts))

    def _unpin(self) -> None:
        """As if what is pinned were on disk; not while a rank starts, which may be about to drop its snapshots."""
        for key, rank in self.ranks.items() if not self.persisting else ():
            memory = MemorySnapshots(self._shm(*key), *key)
            for step in memory.pinned() if rank.ready else ():
                memory.unpin(step)
            memory.close()

    def published(self) -> int:
        step = self.told[2] if self.told[2] > -2 else self.origin_step
        while all((role, rank, step + 1) in self.lines for role, rank in self.ranks):
            step += 1
        return step

    def durable(self, key: tuple[str, int]) -> int:
        rank = self.ranks[key]
        assert rank.status_page is not None
        return max(rank.status_page.read().snapshot, rank.launch.resume)

    def _tell(self, message: m.AgentToRank) -> None:
        for rank in self.ranks.values():
            if rank.socket is not None:
                rank.socket.send_multipart(encode_control(m.encode(message)))

    def _hear(self, message: Any) -> None:
        if isinstance(message, m.RankFailed):
            failure = message.failure
            if self.ranks[failure.ref].launch.generation == failure.generation:
                self.failures.append((failure, self.log(failure.role, failure.rank)))
            return
        rank = self.ranks[message.ref]
        if isinstance(message, m.RankMetrics):
            for line in message.lines:
                self.lines.setdefault((message.role, message.rank, line.step), line)
        if rank.launch.generation != message.generation:
            return
        match message:
            case m.RankHello(addresses=addresses):
                node = self.nodes.get(message.ref, "here")
                rank.peer = m.Peer(message.role, message.rank, node, addresses, message.generation)
                rank.socket = self.context.socket(zmq.PUSH)
                rank.socket.set_hwm(0)
                rank.socket.linger = 0
                rank.socket.connect(addresses["control"])
                if self.told[1] >= 0:
                    rank.socket.send_multipart(encode_control(m.encode(self._advance())))
                self.wired = ()
            case m.RankReady():
                rank.ready = True
            case m.RankDone(sha256=sha):
                rank.sha = sha

    # ---------------------------------------------------------------------------------------------- what tests do

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + HANG_S
        while not condition():
            assert time.monotonic() < deadline, "\n".join(
                [f"{key}: {rank.status_page.read()} gen {rank.launch.generation}" for key, rank in self.ranks.items()]
                + [self.log(*key)[-1500:] for key in self.ranks]
            )
            self.tick()

    def finished(self, role: str, step: int, rank: int = 0) -> None:
        """Wait until a rank has finished `step`."""
        self.until(lambda: self.ranks[role, rank].status_page.read().finished >= step)

    def tell(self, role: str, rank: int, message: m.AgentToRank) -> None:
        """As its agent would."""
        self.ranks[role, rank].socket.send_multipart(encode_control(m.encode(message)))

    def kill(self, *keys: tuple[str, int]) -> None:
        """SIGKILL, and start again with what their memory holds; whole groups together."""
        keys = tuple(dict.fromkeys(mate for key in keys for mate in self.group(*key)))
        for key in keys:
            if self.ranks[key].process.is_alive():
                os.kill(self.ranks[key].process.pid, signal.SIGKILL)
            self.killed += 1
        for key in keys:
            self.ranks[key].process.join()
        held = {key: MemorySnapshots(self._shm(*key), *key).steps() for key in keys}
        for key in keys:
            role, rank = key
            old = self.ranks[key]
            group = [held[mate] for mate in keys if mate[0] == role] if role in self.collective else [held[key]]
            common = sorted(set(group[0]).intersection(*group[1:]))
            resume = common[-1] if common else self.origin_step
            assert resume >= self.committed, "somebody was told that a commit covers what cannot be restored"
            old.status_page.close()
            if old.socket is not None:
                old.socket.close(linger=0)
            restore = "memory" if common else "disk" if self.origin else "none"
            self._launch(role, rank, old.launch.generation + 1, resume, restore)

    def group(self, role: str, rank: int) -> list[tuple[str, int]]:
        """Return the ranks that die together with a rank."""
        return [(role, mate) for mate in range(self.sizes[role])] if role in self.collective else [(role, rank)]

    def done(self) -> dict[tuple[str, int], str]:
        """Run to the end; the digest of each rank."""
        self.until(lambda: all(rank.sha is not None for rank in self.ranks.values()))
        self.until(lambda: self.published() == self.steps - 1 or self.metrics_every > 1)
        return {key: rank.sha for key, rank in self.ranks.items()}

    def metrics(self) -> dict[Any, Any]:
        """Return the metrics that the ranks have reported, without times."""
        return {key: (line.steps, line.means, line.sums, line.records) for key, line in sorted(self.lines.items())}

    def files(self, pattern: str) -> list[str]:
        return sorted(path.name for path in self.shm.rglob(pattern))

    def log(self, role: str, rank: int) -> str:
        path = self.root / f"log-{role}-{rank}"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for rank in self.ranks.values():
            if rank.process.is_alive():
                rank.process.kill()
            rank.process.join()
            if rank.socket is not None:
                rank.socket.close(linger=0)
            rank.status_page.close()
        self.reports.close(linger=0)
        self.context.term()
