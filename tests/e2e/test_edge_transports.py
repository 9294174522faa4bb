"""A job names a transport for single edges: their values take it, and all others keep theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left

ASIDE = '''
import threading

import zmq

from rolemesh_dataplane.transports import Sender, Transport


class Aside(Transport):
    """Receives on a socket of its own, and writes down the edge and the dtypes of what it sends."""

    own_sockets = True

    def open(self, inbox, site):
        self.context, self.site = zmq.Context(), site
        socket, push = self.context.socket(zmq.PULL), inbox.pusher()
        port = socket.bind_to_random_port(f"tcp://{site.host}")
        self.quit = self.context.socket(zmq.PAIR)
        self.quit.bind("inproc://quit")
        self.thread = threading.Thread(target=self.receive, args=(socket, push), daemon=True)
        self.thread.start()
        return f"tcp://{site.host}:{port}"

    def receive(self, socket, push):
        end, poller = self.context.socket(zmq.PAIR), zmq.Poller()
        end.connect("inproc://quit")
        for each in (socket, end):
            poller.register(each, zmq.POLLIN)
        while end not in dict(poller.poll()):
            push.send_multipart(socket.recv_multipart())
        for each in (socket, end, push):
            each.close(0)

    def connect(self, address):
        return AsideSender(self, address)

    def close(self):
        self.quit.send(b"")
        self.thread.join()
        self.quit.close(0)
        self.context.destroy(0)


class AsideSender(Sender):
    def __init__(self, transport, address):
        self.out = open(f"sent-{transport.site.role}-{transport.site.generation}", "a", buffering=1)
        self.socket = transport.context.socket(zmq.PUSH)
        self.socket.connect(address)

    def send(self, frame):
        print("frame", file=self.out)
        self.socket.send(frame)

    def send_payload(self, payload, stamp):
        print(stamp[1], *payload.dtypes(), file=self.out)
        self.socket.send_multipart(payload.frames(stamp), copy=False)

    def close(self, linger_ms):
        self.socket.close(linger=linger_ms)
'''
ROLES = """
import numpy as np

from rolemesh import Broadcast, Workload, operator


class Source(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    @operator(returns=Broadcast())
    def make(self):
        w = np.full(100_000, self.ctx.step, np.float32)
        return {"w": w, "i": np.arange(100_000, dtype=np.int16), "b": bytes(5000)}

    @operator(returns=Broadcast())
    def large(self):
        return np.full(100_000, self.ctx.step)


class Sink(Workload):
    def setup(self, ctx):
        self.ctx, self.total = ctx, 0

    @operator(made=Broadcast(), x=Broadcast())
    def take(self, made, x) -> None:
        assert made["w"][0] == x[0] == self.ctx.step
        self.total += int(made["w"].sum())

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]
"""
FLOW = """
from rolemesh import flow


@flow
def apart(job):
    job.sink.take(made=job.source.make(), x=job.source.large())
"""
JOB = """
name: apart
flow: apart_flow.py:apart
steps: 20
roles:
  source: {use: "apart_roles.py:Source", resources: {cpu: 0.1}}
  sink: {use: "apart_roles.py:Sink", resources: {cpu: 0.1}}
plugins: {transports: [{use: "aside.py:Aside"}]}
engine: {options: {transports: {each: {"source.make -> sink.take": "aside.py:Aside"}}}}
failover: [{use: process}]
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, "apart", ("--backend", "local"))
    files = {"aside.py": ASIDE, "apart_roles.py": ROLES, "apart_flow.py": FLOW, "job.yaml": JOB}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    yield job
    nothing_is_left(job.ids())


@pytest.mark.soak
@pytest.mark.parametrize("nodes", [(), ("--nodes", "2x(cpu=0.1)")], ids=["one node", "two nodes"])
def test_the_values_of_one_edge_take_the_transport_that_is_named_for_it(job: Job, nodes: tuple[str, ...]) -> None:
    ended = job.run(*nodes, "--chaos", "kills=2,targets=rank", "--chaos-compare")
    assert ended.returncode == 0, ended.stdout
    sent = {path.name: path.read_text().splitlines() for path in job.folder.glob("sent-*")}
    assert set().union(*map(set, sent.values())) <= {"0 float32 int16 ", "frame"}, "no other edge takes it"
    assert {name.split("-")[1] for name in sent} == {"source"}


def test_an_edge_or_a_transport_that_is_not_there_is_an_error(job: Job) -> None:
    each = '{"source.make -> sink.tke": "aside.py:Aside", "source.large -> sink.take": tcp}'
    checked = job.cli("validate", "job.yaml", f"engine.options.transports.each={each}")
    assert checked.returncode == 2
    assert "the flow has no edge 'source.make -> sink.tke'" in checked.stderr
    assert "did you mean 'source.make -> sink.take'?" in checked.stderr
    assert "list it: plugins: {transports: [{use: tcp}]}" in checked.stderr
