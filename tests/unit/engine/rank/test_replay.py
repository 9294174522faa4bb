"""A consumer that starts again gets what it needs again; a producer that starts again gets its credits back."""

from typing import NamedTuple

import numpy as np
import pytest

from rolemesh.api.workload import RankContext
from rolemesh_dataplane.shm_transport import ShmTransport
from rolemesh_dataplane.transports import Site
from rolemesh_durable.protocol.delivery.newest import encode_age
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.protocol.messages import Peer
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.process_effects import process_effects
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_durable.rank.waits import ProcessWaits

PATIENCE_S = 10


class Decided(NamedTuple):
    """A decision of a former generation."""

    scope: str
    step: int
    body: bytes


@pytest.fixture
def start(fleet, flow, tmp_path):
    """Start rank 0 of a role in this process: its endpoint and ports."""
    graph, edge = flow
    from rolemesh.api.partition import Split

    endpoints, ports, opened = {}, {}, []

    def begin(role, generation, resume=-1, *, take=None, unrepeated=("b",), **settings):
        edges = [edge(0, 0, 1, credits=4, **settings)]
        flow_graph = graph(("a", "make", Split()), ("b", "take", None, take or {}), edges=edges)
        old = endpoints.pop(role, None)
        if old is not None:
            old.close(0)
        site = Site(role, 0, "here", generation, "127.0.0.1", str(fleet.sockets), str(fleet.shm))
        endpoint = endpoints[role] = Endpoint(site, transports={"shm": ShmTransport(None)}, local="shm")
        meter = Meter(RankContext(role=role), ((0, 1),), lambda message: None)
        status_page = StatusPage.create(tmp_path / f"{role}{generation}")
        shape = JobShape(flow_graph, {"a": 1, "b": 1}, 9, retention=True, unrepeated=unrepeated)
        effects = process_effects(endpoint, status_page, ProcessWaits(endpoint, status_page, meter), meter, None)
        ports[role] = Ports(shape, effects, resume=resume)
        return ports[role]

    def wire():
        peers = [Peer(role, 0, "here", e.addresses, e.site.generation) for role, e in endpoints.items()]
        for role, endpoint in endpoints.items():
            if endpoint.site in opened:
                ports[role].rewire(peers)
            else:
                opened.append(endpoint.site)
                ports[role].open(peers)
        for endpoint in endpoints.values():
            endpoint.pump(0.2)

    yield begin, wire
    for endpoint in endpoints.values():
        endpoint.close(0)


def has(port, made):
    """The value that was made at step `made` comes."""
    while not port.state.ready(made) and port._mail._endpoint.pump(PATIENCE_S):
        pass
    assert port.state.ready(made), f"the value of step {made} does not come"


@pytest.mark.parametrize("rows", [3, 100_000])
def test_a_restarted_consumer_gets_every_value_after_the_commit_again(start, rows):
    begin, wire = start
    a, b = begin("a", 0), begin("b", 0)
    wire()
    for step in range(4):
        a.outputs[0].put(step, np.full(rows, step))
        assert b.inputs[1][0][1].take(step)[0] == step
        b.inputs[1][0][1].release(step)
    b.mail.flush()
    a.drain()
    a.commit(1)
    b = begin("b", 1, resume=1)
    wire()
    a.mail._endpoint.pump(0.2)
    a.outputs[0].put(4, np.full(rows, 4))
    port = b.inputs[1][0][1]
    assert [int(port.take(step)[-1]) for step in (2, 3, 4)] == [2, 3, 4]


def test_a_restarted_producer_learns_the_known_state(start):
    begin, wire = start
    a, b = begin("a", 0), begin("b", 0)
    wire()
    port = b.inputs[1][0][1]
    for step in range(3):
        a.outputs[0].put(step, [step])
        port.take(step)
        port.release(step)
    a = begin("a", 1, resume=0)
    wire()
    a.mail._endpoint.pump(0.2)
    for step in range(1, 4):
        a.outputs[0].put(step, [step])
    assert port.take(3) == [3]
    port.release(3)
    b.mail.flush()
    a.drain()
    assert a.out_edges[0].state.under_way == 0


def test_a_rank_that_has_lost_its_log_goes_on_with_nothing_though_its_operator_catches_the_error(start):
    begin, wire = start
    a, _ = begin("a", 1), begin("b", 0, resume=3)
    a.out_edges[0].void(2)
    with pytest.raises(LogLost, match="b/0 has used what was made at step 2"):
        wire()
    with pytest.raises(LogLost, match="b/0 has used what was made at step 2"):
        a.mail._endpoint.wait()


def test_a_restarted_rank_repeats_its_call_with_the_value_that_it_took_while_there_was_an_initial_one(start):
    begin, wire = start
    flow = {"take": {"every": 3, "at": 2}, "unrepeated": (), "lag": 4, "newest": True, "initial": ([-1],)}
    a, b = begin("a", 0, **flow), begin("b", 0, **flow)
    wire()
    a.outputs[0].put(0, [0])
    port = b.inputs[1][0][1]
    has(port, 0)
    assert port.take(2) == [0]
    for step in (1, 2):
        a.outputs[0].put(step, [step])
    a.commit(2)
    b = begin("b", 1, resume=2, **flow)
    b.recall(-1, [Decided("newest/0", 2, encode_age(2))])
    wire()
    a.mail._endpoint.pump(0.2)
    port = b.inputs[1][0][1]
    has(port, 0)
    assert port.take(2) == [0]
