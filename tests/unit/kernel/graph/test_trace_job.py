"""From a job file to a graph: the flow is found, imported and checked, and what goes wrong there has a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolemesh.errors import RolemeshError
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.trace import trace_job
from rolemesh.job_file import load
from rolemesh.plugins.select import select

ROLES = "def make() -> list:\n    return [1]\n\n\ndef take(rows: list) -> None: ...\n"
FLOW = "import rolemesh\n\n\n@rolemesh.flow\ndef go(job, every=1):\n    job.b.take(job.a.make(), every=every)\n"
JOB = """\
name: test
flow: {flow}
steps: 3
params: {{every: 2}}
roles:
  a: {{use: function, options: {{target: roles.py:make}}}}
  b: {{use: function, world_size: 2, options: {{target: roles.py:take}}}}
edges: {{credits: 4}}
"""


def traced(folder: Path, flow: str = FLOW, name: str = "flow.py:go") -> LogicalGraph:
    (folder / "roles.py").write_text(ROLES)
    (folder / "flow.py").write_text(flow)
    (folder / "job.yaml").write_text(JOB.format(flow=name))
    job = load(folder / "job.yaml")
    return trace_job(job, select(job).roles)


def test_credits_and_params_come_from_the_job_file(tmp_path: Path) -> None:
    graph = traced(tmp_path)
    assert [(op.label, op.every) for op in graph.ops] == [("a.make", 1), ("b.take", 2)]
    assert [edge.credits for edge in graph.edges] == [4]


@pytest.mark.parametrize(
    ("flow", "name", "where", "problem"),
    [
        (FLOW, "flow.py:gone", "job.yaml:2", "flow.py has no 'gone'"),
        (FLOW, "no_such_module:go", "job.yaml:2", "no module named 'no_such_module'"),
        (FLOW, "missing.py:go", "job.yaml:2", "there is no file"),
        ("def go(job): ...\n", "flow.py:go", "job.yaml:2", "is a function, not a flow\n  → put @rolemesh.flow before"),
        ("import json\n\n1 / 0\ngo = 3\n", "flow.py:go", "flow.py:3", "raised ZeroDivisionError"),
        ("import no_such_thing\ngo = 3\n", "flow.py:go", "flow.py:1", "raised ModuleNotFoundError"),
        ("go = (\n", "flow.py:go", "flow.py:1", "raised SyntaxError"),
        (FLOW.replace("a.make", "a.mkae"), "flow.py:go", "flow.py:6", "no operator 'mkae'\n  → did you mean 'make'?"),
    ],
)
def test_a_flow_that_cannot_be_had_says_where_and_why(
    tmp_path: Path, flow: str, name: str, where: str, problem: str
) -> None:
    with pytest.raises(RolemeshError) as caught:
        traced(tmp_path, flow, name)
    assert where in (caught.value.where or "")
    assert problem in str(caught.value)
    assert caught.value.remedy
