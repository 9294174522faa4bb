"""Wrong arguments of `rolemesh.Job`: an error of ours, with place and remedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rolemesh
from rolemesh.api.import_ref import ImportRef
from rolemesh.errors import RolemeshError


@rolemesh.flow
def flow(job: Any) -> None:
    job.a.getuser()


def job(name: Any = "b", options: Any = None, use: Any = "function", **settings: Any) -> rolemesh.Job:
    given = {"target": "getpass:getuser"} if options is None else options
    return rolemesh.Job(name, steps=1, **settings).role("a", use=use, options=given).flow(flow)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "an object": (lambda: job(options={"target": len}).validate(), "roles.a.options.target: a job file cannot hold"),
    "a set": (lambda: job(options={"target": {1}}).validate(), "a job file cannot hold set"),
    "options that are a list": (lambda: job(options=[1]).validate(), "roles.a.options: expected a mapping, got a list"),
    "options that are a text": (lambda: job(options="x").validate(), "roles.a.options: expected a mapping, got 'x'"),
    "a name that is a number": (lambda: job(5).validate(), "name: expected a string, got 5"),
    "roles that are a list": (lambda: job(roles=["a"]).validate(), "roles: expected a mapping, got a list"),
    "a function that is no flow": (lambda: job().flow(lambda job: None), "is no flow"),  # type: ignore[arg-type]
    "no flow": (lambda: job().flow(None), "None is no flow"),  # type: ignore[arg-type]
    "an option that the engine does not have": (
        lambda: job().run(engine="inline", nodes="2x(cpu=1)"),
        "the options of the run: nodes: there is no such option",
    ),
    "an option of the report of another type": (
        lambda: job().run(engine="inline", no_report="perhaps"),
        "the options of the run: no_report: Input should be a valid boolean",
    ),
    "an option of the engine of another type": (
        lambda: job().run(engine="durable", backend="local", resume=[1], trust_pickles="perhaps"),
        "resume: Input should be a valid string; trust_pickles: Input should be a valid boolean",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_impossible_settings_are_an_error_with_a_place_and_a_remedy(what: str) -> None:
    wrong, text = WRONG[what]
    with pytest.raises(RolemeshError, match=text) as raised:
        wrong()
    assert raised.value.where
    assert "Job(" in raised.value.where
    assert "pydantic" not in str(raised.value)
    assert raised.value.__cause__ is None or not isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize("given", [{"use": "pack"}, [{"use": "pack"}], ({"use": "pack"},)])
def test_a_strategy_is_added_to_what_the_job_has_and_the_callers_values_stay(given: Any) -> None:
    made = job(placement=given).placement("pack")
    assert [use.use for use in made.validate().job.spec.placement] == ["pack", "pack"]
    assert len(given) == 1


def test_a_target_may_be_in_a_module_that_stands_for_another() -> None:
    @rolemesh.flow
    def named(job: Any) -> None:
        job.a.basename(job.b.getuser())

    made = job().role("a", use="function", options={"target": "os.path:basename", "inputs": {"p": "broadcast"}})
    made.role("b", use="function", options={"target": "getpass:getuser", "returns": "broadcast"}).flow(named).validate()
    assert ImportRef("os.path:basename").resolve()("/a/b") == "b"
    with pytest.raises(ValueError, match=r"no module named 'os\.pat'"):
        ImportRef("os.pat:basename").check()


def test_a_module_of_the_job_that_an_installed_one_hides_is_an_error_with_both_files(tmp_path: Path) -> None:
    (tmp_path / "getpass.py").write_text("def getuser(): ...")
    with pytest.raises(ValueError, match=r"getpass\.py, which hides .*getpass\.py; write getpass\.py:getuser"):
        ImportRef("getpass:getuser", str(tmp_path)).check()
    ImportRef("getpass.py:getuser", str(tmp_path)).check()


def test_options_of_strategies_and_parameters_of_flows_have_any_name() -> None:
    @rolemesh.flow
    def greeting(job: Any, flow: str, use: str) -> None: ...

    made = job().placement("pack", use=1).failover("process", self=2).observer("json", use=3)
    made.flow(greeting, flow="a", use="b")
    assert "use: 1" in made.text()
    assert "self: 2" in made.text()
