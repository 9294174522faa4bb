"""Runs conformance classes inside a test and tells what failed: how the kit itself is tested with broken plugins."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from rolemesh_testing.conformance import PluginConformance

__all__ = ["Findings", "Outcomes", "failures", "found_in", "outcomes", "own_tests"]

Findings: TypeAlias = "dict[type[Any], dict[str, str]]"
"""Broken plugin → its failing tests with their messages."""


_COLLECTED: dict[str, type[Any]] = {}
_NUMBERS = count()

_MODULE = f"from {__name__} import _COLLECTED\nglobals().update(_COLLECTED)\n"


class Outcomes:
    """The outcome of a run: for each class the messages of its failing tests by name, and the output."""

    def __init__(self, chosen: Mapping[str, Collection[str]] | None = None) -> None:
        """`chosen`: the tests to run, by class; None for all."""
        self._chosen = chosen
        self.failed: dict[str, dict[str, str]] = {}
        self.seen: dict[str, set[str]] = {}
        self.output = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what was not chosen."""
        if self._chosen is not None:
            items[:] = [item for item in items if name_of(item.nodeid) in self._chosen[item.nodeid.split("::")[1]]]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a test; one whose fixtures fail counts as failed."""
        cls, name = report.nodeid.split("::")[1], name_of(report.nodeid)
        self.seen.setdefault(cls, set()).add(name)
        if report.failed:
            self.failed.setdefault(cls, {})[name] = report.longreprtext


def name_of(nodeid: str) -> str:
    """The name of the test, without its parameters."""
    return nodeid.split("::")[2].partition("[")[0]


def outcomes(
    classes: Mapping[str, type[Any]], *arguments: str, chosen: Mapping[str, Collection[str]] | None = None
) -> Outcomes:
    """Run conformance classes, each under a name that begins with ``Test``, in a pytest inside of this process.

    `arguments` go to that pytest: ``-k`` to run some of the tests only; `chosen` names some by class. Raises
    `AssertionError` if a class has no test.
    """
    found = Outcomes(chosen)
    with tempfile.TemporaryDirectory() as folder, _collected(classes), redirect_stdout(StringIO()) as output:
        # By this name pytest keeps the module, also after its end.
        file = Path(folder, f"test_conformance_{next(_NUMBERS)}.py")
        file.write_text(_MODULE, encoding="utf-8")
        settings = ["--rootdir", folder, "-c", os.devnull, "-W", "ignore"]
        # The time limit of the test around this one stays in force: pytest-timeout has one alarm per process.
        plugins = ["-p", "no:timeout", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:anyio"]
        mode = ["--import-mode=importlib", "--capture=no", "-q", "--tb=short", "--basetemp", str(Path(folder, "tmp"))]
        code = pytest.main([*settings, *plugins, *mode, *arguments, str(file)], plugins=[found])
        found.output = output.getvalue()
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"pytest ended with {code}:\n{found.output}"
    unseen = classes.keys() - found.seen.keys()
    assert not unseen, f"no test was collected of {', '.join(sorted(unseen))}:\n{found.output}"
    return found


def failures(cls: type[Any], *arguments: str) -> set[str]:
    """The names of the failing tests of one conformance class; `arguments` as for `outcomes`."""
    return set(outcomes({"TestIt": cls}, *arguments).failed.get("TestIt", {}))


def found_in(
    kit: type[Any],
    broken: Mapping[type[Any], Collection[str]],
    *,
    all_tests: bool = False,
    but: Collection[str] = (),
    **attributes: Any,
) -> Findings:
    """Run the class `kit` on each plugin of `broken`, which has the names of the tests that are expected to fail.

    Those run; with `all_tests` also all others of the kind, but those that `but` names, which take long. `attributes`
    are set in the test classes.
    """
    classes = {f"Test{p.__name__}": type(f"Test{p.__name__}", (kit,), {"plugin": p, **attributes}) for p in broken}
    others = own_tests(kit) - {*but} if all_tests else set()
    chosen = {f"Test{plugin.__name__}": {*expected, *others} for plugin, expected in broken.items()}
    failed = outcomes(classes, chosen=chosen).failed
    return {plugin: failed.get(f"Test{plugin.__name__}", {}) for plugin in broken}


def own_tests(kit: type[Any]) -> set[str]:
    """The names of the standard tests that a kind has beyond those of all kinds."""
    return {name for name in dir(kit) if name.startswith("test_") and not hasattr(PluginConformance, name)}


@contextmanager
def _collected(classes: Mapping[str, type[Any]]) -> Iterator[None]:
    wrong = [name for name in classes if not name.startswith("Test")]
    assert not wrong, f"pytest would not collect {', '.join(wrong)}"
    assert not _COLLECTED, "a pytest inside of this process runs already"
    _COLLECTED.update(classes)
    try:
        yield
    finally:
        _COLLECTED.clear()
