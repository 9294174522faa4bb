"""Real ranks in forked processes, with endpoints, ports and loops; the test plays their agent."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.unit.engine.rank.village import Village
from tests.waiting import HANG_S

from rolemesh.api.partition import Split
from rolemesh.api.workload import RankContext, Workload
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh_dataplane.shm_transport import ShmTransport
from rolemesh_dataplane.tcp_transport import TcpTransport
from rolemesh_dataplane.transports import Site, TransportKeys
from rolemesh_durable.extensions.shipped import SHIPPED
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.master_mail import MasterMail
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_durable.rank.channel import Channels
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.event_loop import Tasks
from rolemesh_durable.rank.frames import encode_control
from rolemesh_durable.rank.loop import Loop
from rolemesh_durable.rank.main import ENGINE
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.port import EnginePort
from rolemesh_durable.rank.process_effects import process_effects
from rolemesh_durable.rank.services import Rank
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_durable.rank.waits import ProcessWaits
from rolemesh_runtime.metrics import Metrics
from rolemesh_runtime.operator_failure import OperatorFailed, user_traceback


class Role(Workload):
    """A workload whose operators are plain functions of it; what they append to `seen` comes back to the test."""

    def __init__(self, **operators: Callable[..., Any]) -> None:
        self.seen: list[Any] = []
        self.ctx = RankContext()
        for name, function in operators.items():
            setattr(self, name, function.__get__(self))

    def setup(self, ctx: RankContext) -> None:
        self.ctx = ctx


class Uncut(Meter):
    """Lines end at the steps that the test names, since no master cuts them."""

    __slots__ = ()

    def cut(self, cuts: Any) -> None:
        pass


@dataclass
class Outcome:
    """The outcome of a rank."""

    finished: int = -1
    seen: list[Any] = field(default_factory=list)
    lines: list[Metrics] = field(default_factory=list)
    failure: str = ""
    traceback: str = ""
    refused: int = 0


@dataclass
class Agent:
    """The test's side while ranks run."""

    reports: Any
    sockets: dict[tuple[str, int], Any]
    status_pages: dict[tuple[str, int], StatusPage]

    def send(self, key: tuple[str, int], message: m.AgentToRank) -> None:
        self.sockets[key].send_multipart(encode_control(m.encode(message)))

    def report(self) -> Any:
        assert self.reports.poll(int(HANG_S * 1000)), "no report came"
        return m.decode_rank_to_agent(self.reports.recv())

    def until(self, key: tuple[str, int], condition: Callable[[Any], bool]) -> None:
        status_page = self.status_pages[key]
        spin_until(lambda: condition(status_page.read()))


def spin_until(condition: Callable[[], bool]) -> None:
    """Watch shared memory, which has no event to wait on."""
    import time

    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        os.sched_yield()


def graph(*ops: tuple[Any, ...], edges: list[Edge]) -> LogicalGraph:
    """`ops` are (role, operator, returns[, settings])."""
    calls = [
        OpCall(i, op[0], op[1], f"{op[0]}.{op[1]}", op[2], **(op[3] if len(op) > 3 else {})) for i, op in enumerate(ops)
    ]
    return LogicalGraph("test", tuple(calls), tuple(edges))


def edge(number: int, src: int, dst: int, param: str = "x", **settings: Any) -> Edge:
    """Split to Split unless said otherwise."""
    both = {"src_partition": Split(), "dst_partition": Split(), **settings}
    return Edge(number, src, dst, param, **both)


class Fleet:
    """Forks ranks and gathers what they did."""

    def __init__(self, sockets: Path, shm: Path, keys: TransportKeys) -> None:
        self.sockets, self.shm, self.keys = sockets, shm, keys

    def run(
        self,
        flow: LogicalGraph,
        roles: Mapping[str, tuple[Callable[[], Role], int]],
        *,
        steps: int,
        nodes: Mapping[tuple[str, int], str] | None = None,
        drive: Callable[[Agent], None] | None = None,
        granted: int | None = None,
        committed: bool = False,
        every: int = 1,
        after: Callable[[Ports, Endpoint], Any] | None = None,
        extensions: Sequence[type[Any]] = (),
        shipped: Sequence[type[Any]] = SHIPPED,
        **ports: Any,
    ) -> dict[tuple[str, int], Outcome]:
        """Fork `roles` (a factory and a world size each), run `steps`, return the outcome per rank.

        `drive` is called while they run, `after` in each rank after its last step. `granted` defaults to all steps.
        """
        extensions = (*shipped, *extensions)
        keys = [(role, rank) for role, (_, size) in roles.items() for rank in range(size)]
        context = get_context("fork")
        until = steps - 1 if granted is None else granted
        children: dict[tuple[str, int], tuple[Any, Connection]] = {}
        for key in keys:
            StatusPage.create(self.sockets / f"status-{key[0]}-{key[1]}").close()
        for key in keys:
            ours, theirs = context.Pipe()

            def main(key: tuple[str, int] = key, pipe: Connection = theirs) -> None:
                outcome = Outcome()
                try:
                    node = (nodes or {}).get(key, "here")
                    self._rank(
                        flow,
                        roles,
                        key,
                        node,
                        bool(nodes),
                        steps,
                        until,
                        every,
                        after,
                        extensions,
                        ports,
                        pipe,
                        outcome,
                    )
                except OperatorFailed as error:
                    outcome.failure = f"{error.label}@{error.step}: {error.error!r}"
                    outcome.traceback = user_traceback(error.error, ENGINE)
                except BaseException:
                    outcome.failure = traceback.format_exc()
                pipe.send(outcome)
                pipe.recv()

            process = context.Process(target=main)
            process.start()
            children[key] = process, ours
        try:
            return self._gather(children, nodes or {}, drive)
        finally:
            for process, pipe in children.values():
                pipe.close()
                process.join(HANG_S)
                if process.is_alive():
                    process.kill()
                    process.join()

    def _gather(self, children: dict[Any, Any], nodes: Mapping[Any, str], drive: Any) -> dict[Any, Outcome]:
        peers = []
        for (role, rank), (_, pipe) in children.items():
            assert pipe.poll(HANG_S)
            peers.append(m.Peer(role, rank, nodes.get((role, rank), "here"), pipe.recv()))
        with zmq.Context() as context:
            reports = context.socket(zmq.PULL)
            reports.bind(f"ipc://{self.sockets}/agent")
            sockets = {}
            for peer in peers:
                sockets[peer.ref] = context.socket(zmq.PUSH)
                sockets[peer.ref].connect(peer.addresses["control"])
            status_pages = {key: StatusPage.open(self.sockets / f"status-{key[0]}-{key[1]}") for key in children}
            for _, pipe in children.values():
                pipe.send(peers)
            try:
                for status_page in status_pages.values():
                    spin_until(lambda status_page=status_page: status_page.read().step >= 0)
                if drive is not None:
                    drive(Agent(reports, sockets, status_pages))
                outcomes = {}
                for key, (_, pipe) in children.items():
                    assert pipe.poll(HANG_S), f"{key} does not end: {status_pages[key].read()}"
                    outcomes[key] = pipe.recv()
                for key, (process, pipe) in children.items():
                    pipe.send("go")
                    process.join(HANG_S)
                    assert process.exitcode == 0, key
                return outcomes
            finally:
                for socket in (*sockets.values(), reports):
                    socket.close(linger=0)
                (self.sockets / "agent").unlink()
                for status_page in status_pages.values():
                    status_page.close()

    def _rank(
        self,
        flow: LogicalGraph,
        roles: Mapping[str, tuple[Callable[[], Role], int]],
        key: tuple[str, int],
        node: str,
        several: bool,
        steps: int,
        until: int,
        every: int,
        after: Any,
        extensions: Sequence[type[Any]],
        options: dict[str, Any],
        pipe: Connection,
        outcome: Outcome,
    ) -> None:
        role, rank = key
        control = Control(lambda: None)
        control.granted = until
        endpoint = Endpoint(
            Site(role, rank, node, 0, "127.0.0.1", str(self.sockets), str(self.shm), self.keys),
            transports={"shm": ShmTransport(None), "tcp": TcpTransport(None)},
            local="shm",
            remote="tcp" if several else "",
            on_control=control,
            agent_address=f"ipc://{self.sockets}/agent",
        )
        try:
            pipe.send(endpoint.addresses)
            peers = pipe.recv()
            size = roles[role][1]
            ctx = RankContext(role=role, rank=rank, world_size=size, steps=steps, port=EnginePort())
            workload = roles[role][0]()
            workload.setup(ctx)
            status_page = StatusPage.open(self.sockets / f"status-{role}-{rank}")

            def report(message: m.RankMetrics) -> None:
                outcome.lines += message.lines
                endpoint.report(message)

            meter = Uncut(ctx, ((0, every),), report)
            sizes = {name: size for name, (_, size) in roles.items()}
            shape = JobShape(flow, sizes, steps, **options)
            effects = process_effects(endpoint, status_page, ProcessWaits(endpoint, status_page, meter), meter, None)
            ports = Ports(shape, effects)
            tasks, channels = Tasks(endpoint), Channels(endpoint, flow.roles)
            master = MasterMail(StartRef(role, rank, 0), control, endpoint.report)
            place = Rank(ctx, workload, status_page, meter, ports, None, tasks, channels, master)
            parts = [extension(None).in_rank(place) for extension in extensions]
            hooks = RankHooks([part for part in parts if part is not None])
            loop = Loop(place, endpoint, hooks, control, effects, origin=lambda folder: None)
            control(m.Connect(tuple(peers), None))
            grouped = ctx.rendezvous is not None
            loop.begin(m.RankLaunch(role, rank, size, 0, 1, 0, collective=grouped), master)
            while any(out_edge.state.unheard for out_edge in ports.out_edges):
                endpoint.pump(HANG_S)
            outcome.seen = workload.seen
            outcome.finished = loop.run()
            if after is not None:
                outcome.seen = [*workload.seen, after(ports, endpoint)]
            outcome.refused = endpoint.refused()
            tasks.close()
        finally:
            endpoint.close()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """A fleet in private folders; fails the test if ranks leave a socket or a segment behind."""
    sockets = Path(tempfile.mkdtemp(prefix="rm-"))
    shm = Path(tempfile.mkdtemp(prefix="rolemesh-test-", dir="/dev/shm"))
    public, secret = (key.decode() for key in zmq.curve_keypair())
    client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
    try:
        yield Fleet(sockets, shm, TransportKeys(public, secret, client_public, client_secret))
        assert [path.name for path in sockets.iterdir() if not path.name.startswith("status-")] == []
        assert list(shm.iterdir()) == []
    finally:
        shutil.rmtree(sockets)
        shutil.rmtree(shm)


@pytest.fixture
def flow() -> Any:
    """`graph` and `edge`, to write flows down by hand."""
    return graph, edge


@pytest.fixture
def role() -> type[Role]:
    """A workload made of functions."""
    return Role


@pytest.fixture
def watch() -> Callable[[Callable[[], bool]], None]:
    """Wait for a condition on shared memory."""
    return spin_until


@pytest.fixture
def village(request):
    """Makes villages, each in folders of its own."""
    made: list[tuple[Village, Path, Path]] = []

    def make(graph: LogicalGraph, classes: dict[str, Any], **options: Any) -> Village:
        root = Path(tempfile.mkdtemp(prefix="rm-"))
        shm = Path(tempfile.mkdtemp(prefix="rolemesh-test-", dir="/dev/shm"))
        options.setdefault("sizes", dict.fromkeys(classes, 1))
        found = Village(root, shm, graph, classes=classes, **options)
        made.append((found, root, shm))
        return found

    yield make
    for found, root, shm in made:
        found.close()
        shutil.rmtree(root)
        shutil.rmtree(shm)


@pytest.fixture
def dice():
    """A seeded generator."""
    return random.Random
