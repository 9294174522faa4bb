"""Importing what was selected: every way in which a plugin can be broken names it, its version, cause and remedy."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from rolemesh.api.workload import Workload
from rolemesh.errors import PluginError
from rolemesh.plugins.discovery import PluginRecord, discover, find
from rolemesh.plugins.drivers import checked, load
from rolemesh_durable.resolved import load_exact

Install = Callable[..., Path]


def record(name: str, kind: str = "workloads") -> PluginRecord:
    return find(kind, name, discover())  # type: ignore[arg-type]


def refused(name: str, kind: str = "workloads") -> PluginError:
    with pytest.raises(PluginError) as caught:
        load(record(name, kind), "job.yaml:4: roles.a.use")
    assert caught.value.where == "job.yaml:4: roles.a.use"
    assert caught.value.remedy
    return caught.value


def test_the_class_that_the_entry_point_names_is_loaded(toy: object) -> None:
    found = load(record("toy"))
    assert (found.__module__, found.__name__) == ("toy_plugin", "Toy")
    assert load_exact(record("toy")) is found


def test_one_of_two_distributions_with_one_name_is_loaded_as_asked(install: Install, toy_source: str) -> None:
    install("one", "1.0", {"workloads": {"same": "one_plugin:Toy"}}, one_plugin=toy_source)
    install("two", "1.0", {"workloads": {"same": "two_plugin:Toy"}}, two_plugin=toy_source)
    assert load(record("one:same")).__module__ == "one_plugin"
    assert load(record("two:same")).__module__ == "two_plugin"


def test_a_plugin_installed_a_moment_ago_is_loaded_whatever_stevedore_has_cached(
    install: Install, toy_source: str
) -> None:
    from stevedore import ExtensionManager

    ExtensionManager("rolemesh.workloads", invoke_on_load=False, on_load_failure_callback=lambda *_: None)
    install("fresh", "1.0", {"workloads": {"fresh": "fresh_plugin:Toy"}}, fresh_plugin=toy_source)
    assert load(record("fresh")).__module__ == "fresh_plugin"


def test_a_failing_import_names_distribution_version_cause_and_line(install: Install) -> None:
    site = install("bad", "2.3", {"workloads": {"bad": "bad_plugin:Bad"}}, bad_plugin="\nimport no_such_thing\n")
    error = refused("bad")
    assert error.what == (
        "the workload 'bad' (bad 2.3) cannot be imported from bad_plugin:Bad: ModuleNotFoundError: "
        f"No module named 'no_such_thing' ({site}/bad_plugin.py:2)"
    )
    assert error.remedy == "pip install bad, or what else provides 'no_such_thing'"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise RuntimeError('no GPU')", "RuntimeError: no GPU"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("assert False, 'never'", "AssertionError: never"),
        ("def f(:", "SyntaxError"),
        ("x = 1", "AttributeError: module 'bad_plugin' has no attribute 'Bad'"),
        ("Bad = 3", "is not a class: bad_plugin:Bad is a int"),
        ("class Bad: api_version = 1", "does not derive from Workload"),
        ("from rolemesh import Workload\nclass Bad(Workload): Options = dict", "has no Options that is a pydantic"),
        ("from rolemesh import Workload\nclass Bad(Workload): api_version = 'x'", "has no api_version (it is 'x')"),
    ],
)
def test_errors_of_a_plugin_are_shown(install: Install, source: str, cause: str) -> None:
    install("bad", "2.3", {"workloads": {"bad": "bad_plugin:Bad"}}, bad_plugin=source)
    error = refused("bad")
    assert "'bad' (bad 2.3)" in error.what
    assert cause in error.what


def test_a_newer_api_is_refused_with_both_numbers(install: Install, toy_source: str) -> None:
    newer = toy_source.replace("api_version = 1", "api_version = 7")
    install("newer", "9.0", {"workloads": {"newer": "newer_plugin:Toy"}}, newer_plugin=newer)
    error = refused("newer")
    assert error.what == (
        f"the workload 'newer' (newer 9.0) needs version 7 of the workloads API; this kernel has {Workload.api_version}"
    )
    assert error.remedy == "pip install --upgrade rolemesh, or an older newer"
    assert error.kind == "incompatible"
    assert [checked(each).status for each in discover(("workloads",)) if each.name == "newer"] == ["incompatible"]


def test_a_broken_plugin_that_speaks_of_the_kernel_is_not_incompatible(install: Install) -> None:
    install("bad", "2.3", {"workloads": {"bad": "bad_plugin:Bad"}}, bad_plugin="raise OSError('this kernel has none')")
    assert refused("bad").kind == "broken"
    assert [checked(each).status for each in discover(("workloads",)) if each.name == "bad"] == ["broken"]


def test_the_kind_of_an_error_survives_a_place_and_a_pickle(install: Install, toy_source: str) -> None:
    error = PluginError("gone", kind="missing", where="roles.a", remedy="install it")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.kind) == (PluginError, str(error), "missing")
    (moved := copy.copy(error)).where = "job.yaml:3"
    assert (moved.kind, moved.where, error.where) == ("missing", "job.yaml:3", "roles.a")


def test_a_scheduler_that_forgot_hookimpl_is_refused(install: Install) -> None:
    source = "from rolemesh import Scheduler\nclass S(Scheduler):\n    def place(self, plan): return plan\n"
    install("forgetful", "1.0", {"schedulers": {"forgetful": "forgetful_plugin:S"}}, forgetful_plugin=source)
    error = refused("forgetful", "schedulers")
    assert error.what == "the scheduler 'forgetful' (forgetful 1.0) does not implement the hook 'place'"
    assert error.remedy == "mark def place(self, …) with @hookimpl"


def test_a_rank_refuses_another_version_than_the_driver_resolved(install: Install, toy_source: str) -> None:
    site = install("toy-dist", "1.2", {"workloads": {"toy": "toy_plugin:Toy"}}, toy_plugin=toy_source)
    resolved = record("toy")
    (site / "toy_dist-1.2.dist-info").rename(site / "toy_dist-1.3.dist-info")
    install("toy-dist", "1.3", {"workloads": {"toy": "toy_plugin:Toy"}}, site=site)
    with pytest.raises(PluginError, match=r"was resolved to toy-dist 1\.2, but 1\.3 is installed here") as caught:
        load_exact(resolved)
    assert caught.value.remedy == "on every node: pip install toy-dist==1.2"


def test_a_rank_refuses_a_target_that_the_distribution_no_longer_declares(toy: object) -> None:
    other = PluginRecord("workloads", "toy", "toy-dist", "1.2", "toy_plugin:Nested")
    with pytest.raises(PluginError, match="does not declare toy = toy_plugin:Nested"):
        load_exact(other)


def test_a_rank_loads_a_plugin_that_the_job_file_calls_by_its_old_name(toy: object) -> None:
    old = PluginRecord("workloads", "toy-before", "toy-dist", "1.2", "toy_plugin:Toy")
    assert load_exact(old).__name__ == "Toy"


def test_a_rank_without_the_distribution_says_so(toy: object) -> None:
    gone = PluginRecord("workloads", "toy", "not-there", "1.2", "toy_plugin:Toy")
    with pytest.raises(PluginError, match="is not installed here"):
        load_exact(gone)
