"""A plugin or a key in the wrong place, or code that is no plugin: the error has a remedy that works as it is typed."""

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


def follow(job: dict[str, Any], error: RolemeshError) -> None:
    """Do in `job` what the remedy says to write, as a person does: here, in another place, or in one of several."""
    wrong = str(error.where).rpartition(": ")[2].split(".")
    says = re.fullmatch(r"(?:write|list) (.*?)(?: (in|for|under) ([\w.]+))?(?:, or .*)?", str(error.remedy))
    assert says, error
    place = [int(part) if part.isdigit() else part for part in (says[3] or "").split(".") if part]
    at: Any = job
    for part in wrong[:-1]:
        at = at[int(part) if part.isdigit() else part]
    del at[wrong[-1]]
    value = yaml.safe_load(says[1] if says[1].startswith("{") else f"{{{says[1]}}}")
    if says[2] == "for":
        put(job, tuple(place), value)
    elif says[2] == "under":
        at = job
        for part in place[:-1]:
            at = at.setdefault(part, {})
        at.setdefault(place[-1], []).append(value)
    else:
        at = job
        for part in place:
            at = at[part]
        assert not at.keys() & value.keys(), f"it would be a duplicate key: {error}"
        at |= value


LEVEL = [{"use": "process"}]
MISPLACED: dict[str, dict[str, Any]] = {
    "an option beside use": {"roles": {"a": {"use": "function", "target": "flow.py:make"}}},
    "an option beside options": {
        "roles": {"a": {"use": "function", "kwargs": {}, "options": {"target": "flow.py:make"}}}
    },
    "a key of the role in its options": {
        "roles": {"a": {"use": "function", "options": {"target": "flow.py:make", "world_size": 2}}}
    },
    "a resource in the role": {"roles": {"a": {**ROLES["a"], "gpu": 0, "memory_gb": 0}}},
    "a resource in the options": {"roles": {"a": {"use": "function", "options": {"target": "flow.py:make", "cpu": 0}}}},
    "a part of the environment in the role": {"roles": {"a": {**ROLES["a"], "env_vars": {"A": "1"}}}},
    "a key of the role at the top": {"world_size": 2},
    "a key of the top in a role": {"roles": {"a": {**ROLES["a"], "params": {}}}},
    "an option of a level": {"failover": [{"use": "process", "max_attempts": 2}]},
    "a limit at the top": {"max_s": 60},
    "an option of a strategy": {"placement": {"use": "collocation", "groups": [["a", "b"]]}},
    "an option of a tracker": {"observers": [{"use": "wandb", "project": "x"}]},
    "an option of a check": {"plugins": {"checks": [{"use": "disk", "at_least": {"free_gb": 1}}]}},
    "an option of the engine": {"engine": {"lease_s": 9}},
    "one beside its name": {"engine": "durable", "lease_s": 9},
    "one beside its name and options": {"engine": {"use": "durable", "options": {"grant": 2}, "hang": {"after_s": 9}}},
    "one in edges": {"edges": {"local": "shm", "credits": 3}},
    "one in a level": {"failover": [{"use": "process", "options": {"lease_s": 9}}]},
    "one too high": {"engine": {"options": {"after_s": 9}}},
    "one too deep": {"engine": {"options": {"hang": {"lease_s": 9}}}},
    "credits at the top": {"credits": 3},
    "a kind of plugins at the top": {"checks": ["disk"]},
    "the name of a strategy as a key": {"placement": [{"collocation": {"groups": [["a", "b"]]}}]},
    "the name of a workload as a key": {"roles": {"a": {"function": {"target": "flow.py:make"}}}},
    "the name of the engine as a key": {"engine": {"durable": {"lease_s": 9}}},
    "the name of a tracker as a key": {"wandb": {"project": "x"}},
    "a tracker under a key of its own": {"tracker": "wandb"},
    "a scheduler under a key of its own": {"scheduler": {"use": "collocation", "options": {"groups": [["a", "b"]]}}},
    "a level under a key of its own": {"recovery": "job", "failover": LEVEL},
}


@pytest.mark.parametrize("written", MISPLACED)
def test_a_key_in_the_wrong_place_has_a_remedy_that_works_as_it_is_typed(written: str, tmp_path: Path) -> None:
    job = {**deepcopy(JOB), **(change := deepcopy(MISPLACED[written]))}
    job["roles"] = {**deepcopy(ROLES), **change.get("roles", {})}
    error = error_of(job, tmp_path)
    assert error is not None
    for _ in range(3):
        if error is None:
            return
        follow(job, getattr(error, "errors", [error])[-1])
        error = error_of(job, tmp_path)
    assert error is None, error


@pytest.mark.parametrize("path", [("roles", "a", "options", "target"), ("roles", "a", "use"), ("flow",)], ids=str)
def test_a_file_without_a_name_has_a_remedy_that_works_as_it_is_typed(path: tuple[str, ...], tmp_path: Path) -> None:
    job = deepcopy(JOB)
    put(job, path, "flow.py")
    error = error_of(job, tmp_path)
    assert error is not None
    typed = re.search(r"write (flow\.py:\w+)", str(error))
    assert typed, error
    put(job, path, typed[1])
    if path[-1] == "use":  # now it names a function
        job["roles"]["a"] = yaml.safe_load(re.search(r"{.*}", str(error_of(job, tmp_path)))[0])  # type: ignore[index]
    assert error_of(job, tmp_path) is None


def test_a_key_that_names_another_plugin_or_stands_in_two_places_gets_no_remedy_that_is_wrong(tmp_path: Path) -> None:
    job = deepcopy(JOB)
    job["roles"]["a"]["target"] = "flow.py:make"  # it is in the options, too
    assert str(error_of(job, tmp_path)).endswith("known: options, resources, runtime_env, use, world_size")
    job = {**deepcopy(JOB), "roles": {**deepcopy(ROLES), "a": {**ROLES["a"], "samples": 8}}}
    job["roles"]["c"] = {"use": "vllm", "options": {"model": "m"}}
    assert "vllm" not in str(error := error_of(job, tmp_path))
    assert "roles.c" not in str(error)


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        (("roles", "a", "use"), "flaw.py", "write flaw.py:Class for your own"),
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
