"""The runner says which standard tests fail, and nothing of this run changes."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
from pydantic import BaseModel, Field
from tests.conformance.counter import Counter
from tests.conformance.harness import failures, outcomes

from rolemesh import Scheduler
from rolemesh_processes.openmp import BASE_ENV
from rolemesh_testing.conformance import PluginConformance
from rolemesh_testing.workloads.ranks import Stage


class Sound(Scheduler):
    """Says what it is."""


class Undescribed(Scheduler):
    class Options(BaseModel):
        depth: int = 1
        names: list[str] = Field(default=[], description="Who.")


class Conformance(PluginConformance):
    kind = "schedulers"
    plugin = Sound


class Broken(Conformance):
    plugin = Undescribed


def test_the_report_names_a_failing_test() -> None:
    assert failures(Conformance) == set()
    assert failures(Broken) == {
        "test_it_says_what_it_is",
        "test_a_misspelled_option_is_an_error",
        "test_every_option_is_described",
    }


def test_several_classes_run_at_once_and_some_of_the_tests_only() -> None:
    found = outcomes({"TestA": Conformance, "TestB": Broken}, "-k", "described or misspelled")
    assert found.failed.keys() == {"TestB"}
    assert "no description: depth" in found.failed["TestB"]["test_every_option_is_described"]
    assert found.seen["TestA"] == found.seen["TestB"] == found.failed["TestB"].keys()


def test_a_class_without_tests_is_an_error() -> None:
    with pytest.raises(AssertionError, match="pytest ended with"):
        failures(type("Empty", (), {"x": Any}))


def test_ranks_under_test_have_the_variables_that_a_jobs_ranks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = set(psutil.Process().children())  # stages of other tests of this process may live on
    with Stage(Counter):
        new = set(psutil.Process().children()) - before
        (stage,) = [child for child in new if "rolemesh_testing.workloads.stage" in child.cmdline()]
        assert stage.environ().items() >= BASE_ENV.items()
