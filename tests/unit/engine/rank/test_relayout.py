"""A rank that keeps running makes new ports for the edges from and to the roles that its job has resized."""

from itertools import combinations

import pytest

from rolemesh.api.partition import Broadcast, Split
from rolemesh.api.workload import RankContext
from rolemesh_dataplane.shm_transport import ShmTransport
from rolemesh_dataplane.transports import Site
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.process_effects import process_effects
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_durable.rank.waits import ProcessWaits

PRODUCERS = ("a", "b", "c")


@pytest.fixture
def ports(fleet, flow, tmp_path):
    """The ports of rank 0 of the role `d`, whose call takes x from `a`, y from `b` and z from `c`."""
    graph, edge = flow
    ops = [*((role, "make", Split()) for role in PRODUCERS), ("d", "take", None)]
    edges = [edge(n, n, 3, param, dst_partition=Broadcast()) for n, param in enumerate("xyz")]
    job = graph(*ops, edges=edges)
    site = Site("d", 0, "here", 0, "127.0.0.1", str(fleet.sockets), str(fleet.shm))
    endpoint = Endpoint(site, transports={"shm": ShmTransport(None)}, local="shm")
    meter = Meter(RankContext(role="d"), ((0, 1),), lambda message: None)
    sizes = dict.fromkeys((*PRODUCERS, "d"), 1)
    shape = JobShape(job, sizes, 9, retention=True, unrepeated=("d",))
    page = StatusPage.create(tmp_path / "d0")
    effects = process_effects(endpoint, page, ProcessWaits(endpoint, page, meter), meter, None)
    yield Ports(shape, effects)
    endpoint.close(0)


@pytest.mark.parametrize("resized", [roles for n in (1, 2, 3) for roles in combinations(PRODUCERS, n)], ids="-".join)
def test_a_call_takes_its_arguments_in_the_order_of_the_flow_after_a_resize(ports, resized):
    before = dict(ports.inputs[3])
    edges = ports.relayout(Layout(1, 3, "step-3", dict.fromkeys(resized, 2), dict.fromkeys(resized, 3)), resized)
    after = ports.inputs[3]
    assert [param for param, _ in after] == ["x", "y", "z"]
    assert [port.edge.id for _, port in after] == [0, 1, 2]
    assert {PRODUCERS[edge] for edge in edges} == set(resized)
    new = {param for param, port in after if port is not before[param]}
    assert new == {param for param, role in zip("xyz", PRODUCERS, strict=True) if role in resized}
