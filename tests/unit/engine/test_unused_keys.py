"""A key that has no effect while another is off is reported: every key of the job file, and of every plugin, is judged.

`tests/data/effects.txt` has a line for each: ``alone`` takes effect whatever else is set; the others state what they
need. ``python -m tests.unit.engine.test_unused_keys`` adds the lines of new keys, for a person to look at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.structure import ROOT

from rolemesh import Job, flow
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import OptionsError
from rolemesh.job_file import model as spec
from rolemesh.job_file.places import parse_yaml
from rolemesh.plugins.discovery import discover
from rolemesh.plugins.drivers import load
from rolemesh_durable.options import DurableOptions
from rolemesh_durable.unused_keys import _parsed, needs_of, without_effect
from rolemesh_inline import InlineEngine

TABLE = ROOT / "tests/data/effects.txt"
JOB = spec.JobSpec(name="j", flow="f.py:f", steps=1, roles={"r": spec.RoleSpec(use="function")})
OPTIONS = DurableOptions()
ANOTHER = "another value"


def models() -> Iterator[tuple[str, type[BaseModel], tuple[BaseModel, ...]]]:
    """Every model of keys: its name in the table, and the models around it."""
    yield "job", spec.JobSpec, ()
    for section in ("edges", "metrics", "until"):
        yield section, type(getattr(JOB, section)), (JOB,)
    for section in ("hang", "snapshots", "transports", "retention"):
        yield f"engine.{section}", type(getattr(OPTIONS, section)), (JOB, OPTIONS)
    yield "roles", spec.RoleSpec, (JOB,)
    yield "roles.resources", spec.Resources, (JOB, JOB.roles["r"])
    yield "roles.runtime_env", spec.RuntimeEnv, (JOB, JOB.roles["r"])
    for record in discover():
        if record.status == "available" and record.distribution.startswith("rolemesh"):
            options = getattr(load(record, "here"), "Options", None)
            if isinstance(options, type) and issubclass(options, BaseModel):
                yield f"{record.kind}.{record.name}", options, (JOB,)
            of_run = getattr(load(record, "here"), "RunOptions", None)
            if of_run is not None:
                yield f"{record.kind}.{record.name}.run", of_run, (JOB,)


def lines() -> dict[str, str]:
    every = [(where, model, name) for where, model, _ in models() for name in model.model_fields]
    return {f"{where}.{name}": "; ".join(needs_of(model, name)) or "alone" for where, model, name in every}


def found(model: type[BaseModel], around: tuple[BaseModel, ...], /, **values: Any) -> dict[str, str]:
    made = model.model_construct(_fields_set=set(values), **values)
    return {str(path[-1]): needs for path, needs in without_effect(*around, made)}


@flow
def one_call(job):
    job.data.give()


def test_every_key_is_judged():
    known = dict(line.split(": ", 1) for line in TABLE.read_text().splitlines())
    assert lines() == known, "look at what is new, then run python -m tests.unit.engine.test_unused_keys"


@pytest.mark.parametrize(
    "where", [where for where, model, _ in models() if any(needs_of(model, name) for name in model.model_fields)]
)
def test_a_key_is_reported_with_what_it_needs_and_only_then(where):
    [(model, around)] = [(model, around) for name, model, around in models() if name == where]
    scope = {name for each in around for name in type(each).model_fields} | model.model_fields.keys() | {"backend"}
    for name, field in model.model_fields.items():
        for need in needs_of(model, name):
            spoiled: dict[str, Any] = {}
            for key, sign, values in map(_parsed, need.split(" or ")):
                assert key.split(".")[0] in scope, f"{where}.{name} needs {key}, which is no key here"
                spoiled[key] = values if sign == "!=" else ANOTHER if sign else None
            own = {key: value for key, value in spoiled.items() if key in model.model_fields}
            if own.keys() == spoiled.keys():
                assert name in found(model, around, **own, **{name: ANOTHER}), f"{where}.{name} without {need}"
        assert name not in found(model, around, **{name: field.get_default(call_default_factory=True)})


@pytest.mark.parametrize(
    ("where", "values", "needs"),
    [
        ("workloads.fsdp", {"momentum": 0.5}, {"momentum": "optimizer is sgd"}),
        ("workloads.fsdp", {"momentum": 0.5, "optimizer": "sgd"}, {}),
        ("workloads.fsdp", {"lr": 0.1, "frozen": True}, {"lr": "frozen is false"}),
        ("workloads.fsdp", {"min_lr_ratio": 0.1}, {"min_lr_ratio": "schedule is not constant"}),
        ("workloads.deepspeed", {"schedule_updates": 9, "config": {"scheduler": {"type": "WarmupDecayLR"}}}, {}),
        ("workloads.vllm", {"top_p": 0.5, "temperature": 0.0}, {"top_p": "temperature is set"}),
        ("engine.retention", {"max_bytes": 1 << 21}, {"max_bytes": "failover is set"}),
        ("engines.durable", {"priority": 3}, {}),
    ],
)
def test_a_key_set_alone(where, values, needs):
    [(model, around)] = [(model, around) for name, model, around in models() if name == where]
    assert found(model, around, **values) == needs


@pytest.mark.parametrize(("backend", "reported"), [("local", True), ("ray", False), (None, False)])
def test_keys_for_clusters_only_are_reported_if_the_backend_is_known(backend, reported):
    class Chosen(BaseModel):
        backend: str | None = None

    assert (found(DurableOptions, (Chosen(backend=backend),), priority=3) != {}) is reported


def test_options_of_another_plugin_state_their_requirement():
    class Inner(BaseModel):
        depth: int = Field(1, json_schema_extra={"needs": ["mode = deep", "steps != 1"]})

    class Options(BaseModel):
        mode: str = "flat"
        inner: Inner = Inner()

    told = list(without_effect(JOB, Options(inner=Inner(depth=2))))
    assert told == [(("inner", "depth"), "mode is deep"), (("inner", "depth"), "steps is not 1")]
    assert list(without_effect(JOB, Options(mode="deep"))) == []


def test_validate_reports_the_key_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from rolemesh.cli import validate

    (tmp_path / "flow.py").write_text("import rolemesh\n\n\n@rolemesh.flow\ndef f(job):\n    job.data.give()\n")
    (tmp_path / "data.py").write_text("def give(ctx):\n    return None\n")
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: t\nflow: flow.py:f\nsteps: 1\nengine: {options: {retention: {max_bytes: 2097152}}}\n"
        "roles: {data: {use: function, options: {target: 'data.py:give'}}}\n"
    )
    validate.command(job)
    [line] = capsys.readouterr().err.splitlines()
    assert "job.yaml:4: engine.options.retention.max_bytes: it has no effect unless failover is set" in line
    validate.command(job, as_json=True)
    assert [f"warning: {text}" for text in json.loads(capsys.readouterr().out)["warnings"]] == [line]


def test_the_engine_inline_reports_what_it_does_not_read(tmp_path: Path):
    said: list[str] = []
    (tmp_path / "data.py").write_text("def give(ctx):\n    return None\n")
    more = {"engine": {"options": {"grant": 2}}, "edges": {"credits": 3}, "failover": [{"use": "process"}]}
    job = Job("t", base=tmp_path, steps=1, observers=[], **more)
    job.role("data", use="function", options={"target": "data.py:give"}, world_size={"min": 1, "max": 2})
    prepared = job.flow(one_call).validate("inline")
    InlineEngine(NoOptions()).start(prepared, tmp_path / "t", say=said.append)
    assert said == [f"warning: {text}" for text in InlineEngine.check(prepared)]
    keys = [text.split(": ")[-2].split(":")[-1] for text in said]
    assert sorted(keys) == ["edges", "engine.options.grant", "failover", "roles.data"]


if __name__ == "__main__":
    TABLE.write_text("".join(f"{key}: {needs}\n" for key, needs in lines().items()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{local: tcp}", "{transports: {local: tcp}}"),
        ("{retention: {max_bytes: 2097152}}", "{retention: {max_bytes: 2097152}}"),
        ("{each: {a -> b: x}, retention: {enabled: true}}", "{transports: {each: {a -> b: x}}}"),
    ],
)
def test_the_former_option_edges_is_refused_with_the_new_line(old: str, new: str) -> None:
    refused_with(f"{{edges: {old}}}", new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{grant: 4, hang: {stacks: false}}", "{grant: 4}"),
        ("{hang: {after_s: 60.0, stacks: false}}", "{hang: {after_s: 60.0}}"),
        ("{stragglers: {factor: 3, for_s: 5}}", "{}"),
        ("{retention: {enabled: true, max_bytes: 2097152}}", "{retention: {max_bytes: 2097152}}"),
        ("{snapshots: {every_s: 0, replicas: 1}}", "{snapshots: {replicas: 1, every: 0s}}"),
        ("{snapshots: {every_s: 0.5}, stragglers: {}}", "{snapshots: {every: 0.5s}}"),
        ("{snapshots: {every_s: null, every: 2}}", "{snapshots: {every: 2}}"),
    ],
)
def test_a_former_option_is_refused_with_the_options_that_mean_the_same(old: str, new: str) -> None:
    refused_with(old, new)


def refused_with(old: str, new: str) -> None:
    written = parse_yaml(old, "job.yaml")[0]
    with pytest.raises(OptionsError) as caught:
        DurableOptions.model_validate(written)
    assert caught.value.remedy == f"write engine: {{options: {new}}}"
    DurableOptions.model_validate(parse_yaml(new, "job.yaml")[0])
