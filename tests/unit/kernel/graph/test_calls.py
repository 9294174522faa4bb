"""Calls in a flow and their mistakes, and the functions that `@service` refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rolemesh import flow, service
from rolemesh.api.partition import Split
from rolemesh.api.service import ServiceSpec, services_of
from rolemesh.api.workload import OperatorSpec
from rolemesh.errors import FlowError
from rolemesh.graph.checks import RoleShape
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.trace import trace
from rolemesh.job.planning import transfers_of
from rolemesh.placement import Transfer

ACT = {"act": OperatorSpec("act", {}, (), Split())}
RUN = {"run": ServiceSpec("run", 4)}
ROLES = {
    "agent": RoleShape(2, ACT),
    "box": RoleShape(3, {}, services=RUN),
    "group": RoleShape(2, ACT, together=True, services=RUN),
    "plain": RoleShape(1, ACT),
}


def traced(function: Callable[[Any], None], *roles: str) -> LogicalGraph:
    return trace(flow(function), {role: ROLES[role] for role in roles}, steps=1)


def test_a_role_that_is_only_called_is_a_role_of_the_graph_and_its_callers_are_known() -> None:
    graph = traced(lambda job: job.agent.act(calls=[job.box]), "agent", "box")
    assert graph.ops[0].calls == ("box",)
    assert graph.services == {"box": RUN}
    assert graph.roles == ("agent", "box")
    assert graph.callers == (("agent", "box"),)


def test_calls_are_traffic_of_every_rank_with_every_rank_for_the_placement() -> None:
    graph = traced(lambda job: job.agent.act(calls=[job.box]), "agent", "box")
    assert transfers_of(graph, {"agent": 2, "box": 3}, {}) == (Transfer("agent", "box", "all", None),)


@pytest.mark.parametrize(
    ("function", "roles", "says"),
    [
        (lambda job: (job.agent.act(calls=[job.plain]), job.plain.act()), ("agent", "plain"), "which has no service"),
        (lambda job: (job.agent.act(calls=[job.group]), job.group.act()), ("agent", "group"), "only work all together"),
        (lambda job: job.group.act(calls=[job.group]), ("group",), "calls its own role"),
        (lambda job: job.agent.act(calls=["box"]), ("agent",), "which is no role"),
        (lambda job: job.agent.act(calls=[job.bax]), ("agent",), "no role 'bax'"),
        (lambda job: job.agent.act(), ("agent", "box"), "nobody calls role 'box'"),
    ],
)
def test_uncallable_names_are_refused(function: Callable[[Any], None], roles: tuple[str, ...], says: str) -> None:
    with pytest.raises(FlowError, match=says):
        traced(function, *roles)


def test_services_are_the_methods_that_are_marked() -> None:
    class Box:
        @service
        def run(self, x: int) -> int:
            return x

        @service(concurrency=3, timeout_s=2.0, recorded=True)
        async def think(self, x: int) -> int:
            return x

        def other(self) -> None:
            pass

    assert services_of(Box) == {"run": ServiceSpec("run"), "think": ServiceSpec("think", 3, 2.0, True)}


def test_a_service_that_cannot_be_run_so_is_refused() -> None:
    with pytest.raises(TypeError, match="needs an `async def` method"):

        @service(concurrency=2)
        def run(self: object) -> None:
            pass

    with pytest.raises(TypeError, match="is a generator"):

        @service
        async def stream(self: object) -> AsyncIterator[int]:
            yield 1
