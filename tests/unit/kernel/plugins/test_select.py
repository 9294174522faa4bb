"""From a job file to imported classes with checked options, each error with its line."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rolemesh.errors import OptionsError, PluginError, Problems, RolemeshError
from rolemesh.job_file import load
from rolemesh.plugins.select import Selection, select

Install = Callable[..., Path]


JOB = """\
name: test
flow: flow.py:f
steps: 3
roles:
  a: {use: toy, options: {rate: 0.1}}
  b:
    use: toy
    world_size: 2
placement: {use: pack2}
observers: []
"""


def chosen(folder: Path, text: str = JOB, *overrides: str, env: dict[str, str] | None = None) -> Selection:
    (folder / "job.yaml").write_text(text)
    return select(load(folder / "job.yaml", overrides, env or {}))


def errors(folder: Path, text: str = JOB, *overrides: str, env: dict[str, str] | None = None) -> list[RolemeshError]:
    with pytest.raises((PluginError, OptionsError, Problems)) as caught:
        chosen(folder, text, *overrides, env=env)
    return list(getattr(caught.value, "errors", [caught.value]))


def test_every_use_is_resolved(toy: object, basics: object, tmp_path: Path) -> None:
    selection = chosen(tmp_path)
    assert selection.roles["a"].options.model_dump() == {"rate": 0.1, "nested": {"depth": 1}}
    assert selection.roles["b"].where == f"{tmp_path}/job.yaml:7: roles.b.use"
    assert [placed.record.name for placed in selection.placement] == ["pack2", "pack"]
    assert selection.failover == ()
    assert {path: used.record.name for path, used in selection.used_by_engine.items()} == {
        "transports.local": "shm",
        "transports.remote": "tcp",
        "transports.weights": "delta",
    }
    names = [record.name for record in selection.records]
    assert names == ["toy", "pack2", "pack", "standard", "shm", "tcp", "delta", "recorder"]


def test_a_default_that_two_distributions_offer_is_refused_and_the_remedy_works(
    toy: object, basics: object, install: Install, tmp_path: Path
) -> None:
    install("other", "1.0", {"schedulers": {"pack": "a:B"}})
    [error] = errors(tmp_path, JOB)
    assert error.what.startswith("two distributions offer the scheduler 'pack'")
    [name] = {each for each in re.findall(r"'(\S+:pack)'", error.remedy or "") if not each.startswith("other:")}
    selection = chosen(tmp_path, JOB.replace("{use: pack2}", f"[{{use: pack2}}, {{use: {name!r}}}]"))
    assert [placed.record.name for placed in selection.placement] == ["pack2", "pack"]


def test_only_selected_plugins_are_imported(
    toy: object, basics: object, install: Install, tmp_path: Path, toy_source: str
) -> None:
    install("other", "1.0", {"workloads": {"other": "other_plugin:Toy"}}, other_plugin=toy_source)
    chosen(tmp_path)
    assert "toy_plugin" in sys.modules
    assert "other_plugin" not in sys.modules


def test_options_are_checked_with_line_and_suggestion(toy: object, basics: object, tmp_path: Path) -> None:
    text = JOB.replace("rate: 0.1", "rte: 0.1, nested: {deep: 2}")
    found = [(error.where, error.what, error.remedy) for error in errors(tmp_path, text)]
    assert found == [
        (f"{tmp_path}/job.yaml:5: roles.a.options.rte", "unknown key 'rte'", "did you mean 'rate'?"),
        (f"{tmp_path}/job.yaml:5: roles.a.options.nested.deep", "unknown key 'deep'", "did you mean 'depth'?"),
    ]


def test_an_option_of_the_wrong_type_says_expected_and_got(toy: object, basics: object, tmp_path: Path) -> None:
    [error] = errors(tmp_path, JOB, "roles.a.options.rate=fast")
    assert isinstance(error, OptionsError)
    assert error.where == "command line: roles.a.options.rate=fast"
    assert error.what == "expected a number, got 'fast' (a string)"


def test_an_options_value_from_the_environment_is_not_shown(toy: object, basics: object, tmp_path: Path) -> None:
    [error] = errors(tmp_path, JOB.replace("rate: 0.1", "rate: ${RATE}"), env={"RATE": "s3cret"})
    assert "s3cret" not in str(error)


def test_a_workloads_own_check_gets_the_place(toy: object, basics: object, tmp_path: Path) -> None:
    found = errors(tmp_path, JOB.replace("0.1", "2"), "roles.b.world_size=3")
    assert [(error.where, error.what, error.remedy) for error in found] == [
        (f"{tmp_path}/job.yaml:5: roles.a.options.rate", "too fast", "slow down"),
        (f"{tmp_path}/job.yaml:6: roles.b.options", "too many ranks", "use two"),
    ]


def test_an_exception_in_check_names_the_plugin(
    basics: object, install: Install, tmp_path: Path, toy_source: str
) -> None:
    source = toy_source.replace("if world_size > 2:", "1 / 0\n        if world_size > 2:")
    install("toy-dist", "1.2", {"workloads": {"toy": "toy_plugin:Toy"}}, toy_plugin=source)
    found = errors(tmp_path)
    assert len(found) == 2
    assert found[0].what == "the workload 'toy' (toy-dist 1.2) failed in check(): ZeroDivisionError: division by zero"


def test_all_problems_come_together_and_a_plugin_is_complained_about_once(basics: object, tmp_path: Path) -> None:
    found = errors(
        tmp_path,
        JOB.replace("use: toy", "use: fsdpp") + "failover: [{use: procss}]\n",
        "engine.options.transports.local=rdma",
    )
    assert [(error.where or "").replace(f"{tmp_path}/", "") for error in found] == [
        "job.yaml:5: roles.a.use",
        "job.yaml:11: failover.0.use",
        "command line: engine.options.transports.local=rdma",
    ]


def test_an_import_string_that_does_not_resolve_names_the_line(basics: object, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def count(): ...\n")
    text = JOB.replace("use: toy", "use: function").replace("{rate: 0.1}", "{target: code.py:cuont}")
    found = errors(tmp_path, text, "roles.b.options.target=nope.py:f")
    assert [error.where for error in found] == [
        f"{tmp_path}/job.yaml:5: roles.a.options.target",
        "command line: roles.b.options.target=nope.py:f",
    ]
    assert "code.py has no 'cuont'; did you mean 'count'?" in found[0].what
    assert "there is no file" in found[1].what
