"""The way of each edge's values, as ``rolemesh plan`` shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolemesh.job.prepared import prepare
from rolemesh.placement.nodes import parse_nodes
from rolemesh_durable.extensions.edges.transports import carriers, wrong_transports
from rolemesh_durable.extensions.edges.ways import Ways, ways

ROLES = """
from rolemesh import Broadcast, Sharded, operator


class Both:
    @operator(returns=Broadcast())
    def weights(self): ...

    @operator(value=Broadcast())
    def load(self, value): ...

    @operator(value=Sharded(dim=None))
    def place(self, value): ...
"""
FLOW = """
from rolemesh import flow


@flow
def f(job):
    job.b.load(job.a.weights())
    job.a.load(job.a.weights(), lag=1)
"""
WEIGHTS = """
from rolemesh import flow


@flow
def f(job):
    weights = job.a.weights()
    job.b.place(weights)
    job.c.load(weights)
"""
JOB = """
name: ways
flow: flow.py:f
steps: 2
roles:
  a: {use: function, options: {target: "roles.py:Both"}, resources: {cpu: 1}}
  b: {use: function, world_size: 3, options: {target: "roles.py:Both"}, resources: {cpu: 1}}
engine: {use: durable}
"""
EACH = ("plugins.transports=[{use: delta}]", 'engine.options.transports.each={"a.weights -> b.load": delta}')


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    return tmp_path / "job.yaml"


def found(job: Path, *overrides: str, nodes: str = "2x(cpu=2)") -> list[tuple[str, str, str, int]]:
    prepared, cluster = prepare(job, list(overrides)), parse_nodes(nodes)
    return [way[:4] for way in ways(prepared, prepared.plan(cluster))]


SELF = ("a.weights#2 → a.load(value)", "within a rank", "memory", 1)
EDGE = "a.weights → b.load(value)"


def test_ranks_of_one_node_use_the_local_transport_and_others_the_remote_one(job: Path) -> None:
    assert found(job) == [(EDGE, "between nodes", "tcp", 2), (EDGE, "on one node", "shm", 1), SELF]
    assert found(job, nodes="1x(cpu=4)") == [(EDGE, "on one node", "shm", 3), SELF]
    delta = found(job, "engine.options.transports.remote=delta")
    assert delta == [(EDGE, "between nodes", "delta", 2), (EDGE, "on one node", "shm", 1), SELF]


def test_an_edge_that_is_named_has_its_transport_everywhere(job: Path) -> None:
    assert found(job, *EACH) == [(EDGE, "between nodes", "delta", 2), (EDGE, "on one node", "delta", 1), SELF]


def test_named_tensors_have_a_transport_of_their_own_between_nodes(job: Path) -> None:
    (job.parent / "flow.py").write_text(WEIGHTS)
    third = 'roles.c={use: function, options: {target: "roles.py:Both"}, resources: {cpu: 1}}'

    def of(*overrides: str) -> set[tuple[str, str, str]]:
        return {(name[:23], where, way) for name, where, way, _ in found(job, third, *overrides, nodes="3x(cpu=2)")}

    placed, loaded = "a.weights → b.place(val", "a.weights → c.load(valu"
    others = {(placed, "on one node", "shm"), (loaded, "between nodes", "tcp")}
    assert of() == {(placed, "between nodes", "delta"), *others}
    assert of("engine.options.transports.remote=tcp") == {(placed, "between nodes", "tcp"), *others}
    assert of("engine.options.transports.weights=tcp") == {(placed, "between nodes", "tcp"), *others}


def test_only_roles_at_an_edge_of_tensors_open_its_transport_and_only_in_jobs_of_several_nodes(job: Path) -> None:
    (job.parent / "flow.py").write_text(WEIGHTS)
    prepared = prepare(job, ['roles.c={use: function, options: {target: "roles.py:Both"}}'])
    several = carriers(prepared, several_nodes=True)
    assert {role: [*own] for role, own in several.transports.items()} == {
        "a": ["local", "remote", "weights"],
        "b": ["local", "remote", "weights"],
        "c": ["local", "remote"],
    }
    assert several[1:] == ("remote", {0: ("local", "weights")})
    one = carriers(prepared, several_nodes=False)
    assert ({role: [*own] for role, own in one.transports.items()}, *one[1:]) == (
        {role: ["local"] for role in "abc"},
        "",
        {},
    )


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ("shm", "reaches ranks of its own node only"),
        ("{use: tcp, options: {}}", ""),
        ("plain", "binds the rank's socket"),
    ],
)
def test_a_transport_of_tensors_must_reach_other_nodes_and_have_sockets_of_its_own(
    job: Path, weights: str, why: str
) -> None:
    (job.parent / "plain.py").write_text(
        "from rolemesh_dataplane.transports import Transport\nclass Plain(Transport):\n    reach = 'network'\n"
    )
    text = f"engine.options.transports.weights={weights.replace('plain', 'plain.py:Plain')}"
    wrong = [str(error) for error in wrong_transports(prepare(job, [text]))]
    assert [why in each for each in wrong] == [True] * bool(why)


def test_ranks_without_a_place_have_no_way(job: Path) -> None:
    assert found(job, nodes="1x(cpu=2)") == [(EDGE, "on one node", "shm", 1), SELF]


def test_a_class_that_lends_says_so(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, cluster = prepare(job), parse_nodes("2x(cpu=2)")
    monkeypatch.setattr(prepared.selection.roles["a"].cls, "lends", ("weights",), raising=False)
    by = {way.where: way for way in ways(prepared, prepared.plan(cluster)) if way.edge == EDGE}
    assert by["on one node"].transport == "shm, lent"
    assert by["on one node"].why == "a lends it"
    assert by["between nodes"].transport == "tcp"


def test_plan_prints_them_with_the_reason(job: Path) -> None:
    prepared, cluster = prepare(job, EACH), parse_nodes("1x(cpu=4)")
    told, text = Ways(Ways.Options()).tell(prepared, cluster, prepared.plan(cluster))
    assert [each["transport"] for each in told["ways"]] == ["delta", "memory"]
    assert text.splitlines() == [
        "Ways of values",
        "from → to (parameter)        way     pairs of ranks   because",
        "a.weights → b.load(value)    delta   3 on one node    transports.each",
        "a.weights#2 → a.load(value)  memory  1 within a rank  one rank does both",
    ]
    inline = prepare(job, engine="inline")
    assert Ways(Ways.Options()).tell(inline, cluster, prepared.plan(cluster)) == ({}, "")
