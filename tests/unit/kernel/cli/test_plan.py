"""``rolemesh plan``: the dry run, for clusters that are there and that are not."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Rolemesh = Callable[..., subprocess.CompletedProcess[str]]

ROLES = """\
class Source:
    def __init__(self, ctx): ...
    def rows(self) -> list: return [1, 2]

class Loop:
    def __init__(self, ctx): ...
    def work(self, rows: list) -> list: return rows
    def adopt(self, state: list) -> None: ...
"""
FLOW = """\
import rolemesh

@rolemesh.flow
def go(job):
    made = job.worker.work(job.source.rows())
    job.checker.work(made, every=5)
    job.worker.adopt(made, lag=1)
"""
JOB = """\
name: dry
flow: flow.py:go
steps: 10
roles:
  source:  {use: function, resources: {cpu: 0}, options: {target: roles.py:Source}}
  worker:  {use: function, world_size: 2, resources: {cpu: 2, gpu: 1}, options: {target: roles.py:Loop}}
  checker: {use: function, world_size: 3, resources: {cpu: 4}, options: {target: roles.py:Loop}}
"""


@pytest.fixture
def job(tmp_path: Path) -> None:
    for name, text in {"job.yaml": JOB, "flow.py": FLOW, "roles.py": ROLES}.items():
        (tmp_path / name).write_text(text)


@pytest.mark.usefixtures("job")
def test_the_plan_shows_graph_routes_ranks_and_strategies_in_100_columns(rolemesh: Rolemesh) -> None:
    done = rolemesh("plan", "job.yaml", "--nodes", "2x(cpu=10,gpu=1)")
    assert done.returncode == 0, done.stderr
    for part in (
        "worker.work → checker.work(rows)",
        "Split() → Split()",
        "repartition 2→3",
        "every 5 steps from step 4",
        "every step from step 1",
        "flow.py:5",
        "worker/0 node-0",
        "worker/1 node-1",
        "pack: beside worker/0",
        "cpu 10, gpu 1",
    ):
        assert part in " ".join(done.stdout.split()), part
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert not done.stderr


@pytest.mark.usefixtures("job")
def test_the_plan_as_json_has_every_rank_edge_and_bundle(rolemesh: Rolemesh) -> None:
    done = rolemesh("plan", "job.yaml", "roles.checker.world_size=1", "--nodes", "2x(cpu=8,gpu=1)", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [(r["role"], r["rank"], r["node"], r["gpus"]) for r in plan["ranks"]] == [
        ("source", 0, "node-0", []),
        ("worker", 0, "node-0", [0]),
        ("worker", 1, "node-1", [0]),
        ("checker", 0, "node-0", []),
    ]
    assert plan["bundles"]["node-0"] == {"cpu": 6.0, "gpu": 1.0}
    assert plan["edges"][-1] == {
        "from": "worker.work",
        "to": "worker.adopt",
        "param": "state",
        "from_partition": "Split()",
        "to_partition": "Split()",
        "route": "identity 2→2",
        "messages": 2,
        "lag": 1,
        "newest": False,
        "credits": None,
        "window": 3,
    }
    assert plan["unplaced"] == []


@pytest.mark.usefixtures("job")
def test_the_plan_shows_which_ranks_have_which_environment_and_no_secret(rolemesh: Rolemesh, tmp_path: Path) -> None:
    asked = "runtime_env: {pip: [x==1.0, 'y @ https://${TOKEN}@host/y.whl'], env_vars: {KEY: '${TOKEN}'}}"
    text = JOB.replace("use: function, world_size", f"use: function, {asked}, world_size")
    (tmp_path / "job.yaml").write_text(text)
    done = rolemesh("plan", "job.yaml", "--nodes", "2x(cpu=10,gpu=1)", TOKEN="s3cret")
    assert done.returncode == 0, done.stderr
    environment = "pip: x==1.0, y @ https://${TOKEN}@host/y.whl variables: KEY"
    assert f"worker/0–1, checker/0–2 {environment}" in " ".join(done.stdout.split())
    told = json.loads(rolemesh("plan", "job.yaml", "--json", TOKEN="s3cret").stdout)
    assert told["roles"]["source"]["runtime_env"] == {}
    assert told["roles"]["worker"]["runtime_env"]["env_vars"] == {"KEY": "${TOKEN}"}
    assert "s3cret" not in done.stdout + json.dumps(told)


@pytest.mark.usefixtures("job")
def test_ranks_that_cannot_be_placed_are_listed_by_role_with_exit_code_2(rolemesh: Rolemesh) -> None:
    done = rolemesh("plan", "job.yaml", "--nodes", "(cpu=5)")
    assert done.returncode == 2
    assert "roles.worker: 2 ranks (0, 1) cannot be placed: needs gpu 1" in done.stderr
    assert "the cluster is short of 2 gpu" in done.stderr
    assert "roles.checker: 2 ranks (1, 2) cannot be placed: needs cpu 4, the most that is free on a node is 1" in (
        done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("job")
def test_the_same_reasons_are_in_the_json(rolemesh: Rolemesh) -> None:
    done = rolemesh("plan", "job.yaml", "--nodes", "(cpu=5)", "--json")
    assert done.returncode == 2
    assert {entry["role"] for entry in json.loads(done.stdout)["unplaced"]} == {"worker", "checker"}


@pytest.mark.usefixtures("job")
def test_without_nodes_it_plans_for_this_machine(rolemesh: Rolemesh) -> None:
    small = ["roles.worker.resources.gpu=0", "roles.worker.resources.cpu=0.1", "roles.checker.resources.cpu=0.1"]
    done = rolemesh("plan", "job.yaml", *small, "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["nodes"]) == 1


@pytest.mark.usefixtures("job")
def test_collocated_ranks_show_their_common_slot(rolemesh: Rolemesh) -> None:
    pytest.importorskip("rolemesh_collocation")
    shared = "placement={use: collocation, options: {groups: [[worker, checker]]}}"
    done = rolemesh("plan", "job.yaml", shared, "roles.checker.world_size=2", "--nodes", "2x(cpu=8,gpu=1)")
    assert done.returncode == 0, done.stderr
    assert "collocation: worker/0 + checker/0 share a slot" in done.stdout
    assert "pack: beside worker/0" in done.stdout
    unknown = shared.replace("checker", "chekcer")
    done = rolemesh("plan", "job.yaml", unknown, "--nodes", "2x(cpu=8,gpu=1)")
    assert done.returncode == 2
    assert "unknown role 'chekcer'" in done.stderr
    assert "did you mean 'checker'?" in done.stderr


@pytest.mark.usefixtures("job")
def test_a_plan_imports_neither_ray_nor_torch_nor_vllm(tmp_path: Path) -> None:
    import sys

    code = (
        "import sys; from rolemesh.cli import main; code = main(['plan', 'job.yaml', '--nodes', '(cpu=99,gpu=9)']); "
        "print([m for m in ('ray', 'torch', 'vllm') if m in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stderr


@pytest.mark.usefixtures("job")
def test_the_plan_shows_rows_by_demand_as_their_author_has_declared_them(rolemesh: Rolemesh, tmp_path: Path) -> None:
    inputs = "roles.worker.options.inputs.rows=balanced(1, 8, drop)"
    (tmp_path / "roles.py").write_text(ROLES.replace("    def work", "    async def work"))
    done = rolemesh("plan", "job.yaml", inputs, "--nodes", "2x(cpu=10,gpu=1)", "--json")
    assert done.returncode == 0, done.stderr
    edges = {edge["to"]: (edge["from_partition"], edge["to_partition"]) for edge in json.loads(done.stdout)["edges"]}
    assert edges["worker.work"] == ("Split()", "Balanced(1, 8, 'drop')")
    assert edges["checker.work"] == ("Split()", "Split()")
