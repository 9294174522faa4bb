"""A workload looks at the whole flow before the start, and what it finds has its place in the job file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolemesh.errors import Problems, RolemeshError
from rolemesh.job.prepared import prepare

ROLES = """
from rolemesh import Broadcast, OptionsError, Workload, flow, operator
from rolemesh.errors import Problems
from pydantic import BaseModel

class Options(BaseModel, extra="forbid"):
    unit: str = "m"

class Meter(Workload):
    Options = Options

    @operator(returns=Broadcast())
    def read(self): ...

class Sum(Workload):
    Options = Options

    @operator(value=Broadcast(), more=Broadcast())
    def add(self, value, more=None): ...

    @classmethod
    def check_flow(cls, options, role, job):
        ops, roles, errors = job.graph.ops, job.roles, []
        for edge in job.graph.edges:
            giver = ops[edge.src].role
            assert roles[giver].cls is Meter and ops[edge.dst].role == role
            if roles[giver].options.unit != options.unit:
                what = f"{giver} reads in {roles[giver].options.unit}, {edge.param}"
                errors.append(OptionsError(what, where="unit"))
        if errors:
            raise Problems(errors)

@flow
def add(job):
    job.sum.add(job.one.read(), job.two.read())
"""
JOB = """
name: units
flow: roles.py:add
steps: 1
roles:
  one: {use: "roles.py:Meter", options: {unit: m}}
  two: {use: "roles.py:Meter", options: {unit: m}}
  sum: {use: "roles.py:Sum", options: {unit: m}}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "roles.py").write_text(ROLES)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def test_a_workload_sees_the_options_of_the_roles_that_it_takes_from(job: Path) -> None:
    prepare(job)
    with pytest.raises(Problems) as caught:
        prepare(job, ["roles.one.options.unit=km", "roles.two.options.unit=ft"])
    assert [(error.where, error.what) for error in caught.value.errors] == [
        (f"{job}:8: roles.sum.options.unit", "one reads in km, value"),
        (f"{job}:8: roles.sum.options.unit", "two reads in ft, more"),
    ]


def test_an_exception_in_it_names_the_plugin_and_the_method(job: Path) -> None:
    (job.parent / "roles.py").write_text(ROLES.replace("errors = job.graph.ops,", "errors = 1 / 0,"))
    with pytest.raises(RolemeshError, match=r"failed in check_flow\(\): ZeroDivisionError"):
        prepare(job)
