"""The processes of a job are as nice as the option says."""

import sys
from pathlib import Path

import pytest
from rolemesh.cli import main
from rolemesh_testing import BackendConformance


class TestConformance(BackendConformance):
    """The tests that every backend must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"niceness": 20}, {"niceness": -1})


JOB = """name: small
flow: flow.py:small
steps: 2
roles:
  a: { use: function, options: { target: "flow.py:make" } }
"""
FLOW = """import os

from rolemesh import Batch, RankContext, flow


def make(ctx: RankContext) -> Batch:
    ctx.metric(niceness=os.nice(0))
    return Batch({"x": [1]})


@flow
def small(job):
    job.a.make()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="priorities are those of Linux")
def test_the_processes_of_a_job_stand_back(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "flow.py").write_text(FLOW)
    run = ["run", str(tmp_path / "job.yaml"), "--runs-dir", str(tmp_path / "runs")]
    assert main([*run, "--backend", "{{ cookiecutter.name }}", "--niceness", "13"]) == 0
    assert '"niceness":13' in (tmp_path / "runs" / "small" / "metrics.jsonl").read_text()
