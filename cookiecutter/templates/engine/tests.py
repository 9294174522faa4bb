"""A run leaves what its process used, also if the job fails."""

import json
from pathlib import Path

import pytest
from rolemesh.cli import main
from rolemesh_testing import EngineConformance


class TestConformance(EngineConformance):
    """The tests that every engine must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"file": "../usage.json"}, {"cores": 3})


JOB = """name: small
flow: flow.py:small
steps: 2
roles:
  a: { use: function, options: { target: "flow.py:make" } }
engine: { use: {{ cookiecutter.name }}, options: { file: used.json } }
"""
FLOW = """from rolemesh import Batch, flow


def make() -> Batch:
    {body}


@flow
def small(job):
    job.a.make()
"""


@pytest.mark.parametrize(("body", "code"), [('return Batch({"x": [1]})', 0), ('raise ValueError("no")', 1)])
def test_a_run_leaves_what_it_used(tmp_path: Path, body: str, code: int) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "flow.py").write_text(FLOW.replace("{body}", body))
    assert main(["run", str(tmp_path / "job.yaml"), "--runs-dir", str(tmp_path / "runs")]) == code
    used = json.loads((tmp_path / "runs" / "small" / "used.json").read_text())
    assert used["wall_s"] > 0
    assert used["peak_mb"] > 1
