"""A plugin under the wrong key, or code that is no plugin: the error has a remedy that works as it is typed."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolemesh.errors import RolemeshError
from rolemesh.job.prepared import prepare

CODE = """
from rolemesh import Batch, Workload, flow


def make() -> Batch:
    return Batch({"x": [1]})


class Adder:
    def add(self, rows: Batch) -> None:
        pass


class Own(Workload):
    pass


@flow
def small(job):
    job.b.add(job.a.make())
"""
ROLES = {
    "a": {"use": "function", "options": {"target": "flow.py:make"}},
    "b": {"use": "function", "options": {"target": "flow.py:Adder"}},
}
JOB: dict[str, Any] = {"name": "small", "flow": "flow.py:small", "steps": 2, "roles": ROLES}


def put(job: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    at: Any = job
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value


def error_of(written: dict[str, Any], folder: Path) -> RolemeshError | None:
    (folder / "flow.py").write_text(CODE)
    (folder / "job.yaml").write_text(yaml.safe_dump(written))
    try:
        job = prepare(folder / "job.yaml")
        job.selection.engine.cls.check(job)
    except RolemeshError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (("roles", "a"), "flow.py:make"),
        (("roles", "a"), {"use": "flow.py:make"}),
        (("roles", "b"), {"use": "flow.py:Adder"}),
        (("placement",), "pack"),
        (("failover",), "process"),
        (("failover",), ["process"]),
        (("observers",), "console"),
        (("plugins",), {"extensions": "recorder"}),
    ],
    ids=str,
)
def test_a_remedy_works_as_it_is_typed(key: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    job = deepcopy(JOB)
    put(job, key, value)
    for _ in range(3):
        error = error_of(job, tmp_path)
        if error is None:
            return
        place = re.sub(r"\.use$", "", str(error.where).rpartition(": ")[2]).split(".")
        typed = re.search(r"[\[{].*[\]}]", error.remedy or "")
        assert typed, error
        put(job, tuple(int(part) if part.isdigit() else part for part in place), yaml.safe_load(typed[0]))
    raise AssertionError(f"still wrong: {error}")


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        (("roles", "a", "use"), "flow.py", "write flow.py:Class for your own"),
        (("roles", "a", "use"), "flaw:make", "there is no module 'flaw'; write file.py:Class"),
        (("roles", "a", "use"), "pack", "'pack' is a scheduler: list it under placement;"),
        (("roles", "a", "use"), "recorder", "'recorder' is an extension: list it under plugins.extensions;"),
        (("roles", "a", "options", "target"), "flow.py:Own", 'write use: "flow.py:Own" for the role'),
        (("placement",), {"use": "flow.py:make"}, "write a class that derives from Scheduler"),
        (("failover",), [{"use": "flow.py:Adder"}], "write class Adder(FailoverLevel), from rolemesh import"),
        (("plugins",), {"observers": ["console"]}, "list it under observers"),
        (("engine",), {"options": {"state": "journal.db"}}, "write a URL: sqlite:///journal.db for a file"),
        (("engine",), {"options": {"state": "sqllite"}}, "did you mean 'sqlite'?"),
    ],
    ids=str,
)
def test_a_remedy_names_the_right_place(key: tuple[Any, ...], value: Any, remedy: str, tmp_path: Path) -> None:
    job = deepcopy(JOB)
    put(job, key, value)
    error = error_of(job, tmp_path)
    assert error is not None
    assert str(error.remedy).startswith(remedy), error
