"""A key at the wrong place of the job file: the error says what to write, and where."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rolemesh.errors import JobFileError, Problems
from rolemesh.job_file.loading import JobFile, Written, load
from rolemesh.plugins.option_types import types_of_plugins

JOB = "name: t\nflow: flow.py:f\nsteps: 3\nroles: {a: {use: function}}\n"


def loaded(*overrides: str, more: str = "", env: dict[str, str] | None = None) -> JobFile:
    written = Written(JOB + more, Path("/nowhere"), "job.yaml")
    return load(written, overrides, env or {}, partial(types_of_plugins, admit=None))


def refused(*overrides: str, more: str = "", env: dict[str, str] | None = None) -> list[tuple[str, str, str]]:
    with pytest.raises((JobFileError, Problems)) as caught:
        loaded(*overrides, more=more, env=env)
    found = getattr(caught.value, "errors", [caught.value])
    return [(each.where or "", each.what, each.remedy or "") for each in found]


@pytest.mark.parametrize(
    ("line", "key", "new"),
    [
        ("lease_s: 5", "lease_s", "engine: {options: {lease_s: 5}}"),
        ("state: sqlite", "state", "engine: {options: {state: sqlite}}"),
        ("hang: {after_s: 5}", "hang", "engine: {options: {hang: {after_s: 5}}}"),
        ("retention: {max_bytes: 9}", "retention", "engine: {options: {retention: {max_bytes: 9}}}"),
        (
            "edges: {each: {a.b -> c.d: tcp}}",
            "edges.each",
            "engine: {options: {transports: {each: {a.b -> c.d: tcp}}}}",
        ),
        ("edges: {local: shm}", "edges.local", "engine: {options: {transports: {local: shm}}}"),
        ("state: ${SECRET}", "state", "engine: {options: {state: '${SECRET}'}}"),
        ("hang: {after_s: ${SECRET}}", "hang", "engine: {options: {hang: {after_s: '${SECRET}'}}}"),
        (f"state: {'x' * 99}", "state", "engine: {options: {state: …}}"),
    ],
)
def test_an_option_of_the_engine_elsewhere_is_refused_with_the_line_to_write(line: str, key: str, new: str) -> None:
    [(where, what, remedy)] = refused(more=line + "\n", env={"SECRET": "swordfish"})
    assert where == f"job.yaml:5: {key}"
    assert " belongs in engine.options" in what
    assert remedy == f"write {new}"


@pytest.mark.parametrize("override", ["lease_s=5", "hang.after_s=5", "transports.remote=tcp", "state:=${X}"])
def test_an_override_of_it_is_refused_with_the_right_one(override: str) -> None:
    [(where, _, remedy)] = refused(override, env={"X": "1"})
    assert where == f"command line: {override}"
    assert remedy == f"write engine.options.{override}"


@pytest.mark.parametrize("override", ["edges.each={}", "edges.each.[a.b -> c.d]=tcp", "edges.remote=tcp"])
def test_an_override_of_edges_is_refused_with_the_right_one(override: str) -> None:
    [(where, _, remedy)] = refused(override)
    assert where == f"command line: {override}"
    assert remedy == f"write engine.options.{override.replace('edges', 'transports')}"


@pytest.mark.parametrize("line", ["leas_s: 5", "metrics: {use: 1}", "edges: {colour: 5}"])
def test_a_key_that_no_place_has_is_unknown(line: str) -> None:
    [(_, what, _)] = refused(more=line + "\n")
    assert what.startswith("unknown key")


def test_a_bare_name_and_options_alone_are_an_engine() -> None:
    assert loaded(more="engine: durable\n").spec.engine.use == "durable"
    alone = loaded(more="engine: {options: {lease_s: 5}}\n").spec.engine
    assert (alone.use, alone.options) == (None, {"lease_s": 5})


@pytest.mark.parametrize("engine", ["durable", "{use: durable}", "{options: {grant: 2}}"])
def test_the_right_override_works_however_the_engine_is_written(engine: str) -> None:
    [(_, _, remedy)] = refused("lease_s=5", more=f"engine: {engine}\n")
    found = loaded(remedy.removeprefix("write "), more=f"engine: {engine}\n").spec.engine
    assert found.options["lease_s"] == 5
    assert found.use == (None if "grant" in engine else "durable")
