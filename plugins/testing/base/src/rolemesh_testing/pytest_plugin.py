"""The kit's pytest plugin: it collects the results of the standard tests, prints overrides, and writes the report.

Every pytest run of an environment with rolemesh loads it, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rolemesh_testing.hanging import HANGS, has_hung, limit_of

if TYPE_CHECKING:
    from rolemesh_testing.workloads.ranks import Stages

__all__ = ["Conformance"]

_SETUP_S = pytest.StashKey[float]()
"""Seconds of a test's fixtures, in which ranks may start."""
_ASSERTING = (
    "backends", "checks", "commands", "conformance", "diagnosers", "engines", "environments", "examinations",
    "extensions", "failover", "harnesses", "kinds", "observers", "sandboxes", "scalers", "schedulers", "sources",
    "stores", "transports", "workloads",
)  # fmt: skip
for _asserting in _ASSERTING:
    pytest.register_assert_rewrite(f"rolemesh_testing.{_asserting}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--conformance-only``, ``--conformance-plugin``, ``--conformance-kind`` and ``--conformance-report``."""
    group = parser.getgroup("rolemesh", "rolemesh conformance")
    group.addoption("--conformance-only", action="store_true", help="Run the conformance classes, no other tests.")
    group.addoption("--conformance-plugin", metavar="NAME", help="Of those, only the ones of this plugin.")
    group.addoption("--conformance-kind", metavar="KIND", help="Of those, only the ones of plugins of this kind.")
    group.addoption("--conformance-report", metavar="FILE", type=Path, help="Write what they found, as JSON.")


def pytest_configure(config: pytest.Config) -> None:
    """Register the collector of results."""
    config.pluginmanager.register(Conformance(config), "rolemesh-conformance-results")


@pytest.fixture(scope="session")
def rolemesh_stages() -> Iterator[Stages]:
    """The processes from which ranks under test are forked. All tests of the session share them."""
    from rolemesh_testing.workloads.ranks import Stages

    stages = Stages()
    yield stages
    stages.close()


class Conformance:
    """The results of a session's conformance classes."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugin: str | None = config.getoption("--conformance-plugin")
        self._kind: str | None = config.getoption("--conformance-kind")
        self._only: bool = config.getoption("--conformance-only") or bool(self._plugin or self._kind)
        self._report: Path | None = config.getoption("--conformance-report")
        self._is_worker = hasattr(config, "workerinput")
        self._hung: dict[Any, list[str]] = {}
        self.results: list[dict[str, Any]] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect other tests on request. Limit the time of each test if the project sets no limit."""
        if self._only:
            others = [item for item in items if not self._wanted(item)]
            items[:] = [item for item in items if self._wanted(item)]
            config.hook.pytest_deselected(items=others)
        if config.pluginmanager.hasplugin("timeout") and not _has_timeout(config):
            for item in items:
                if (cls := _class(item)) is not None and item.get_closest_marker("timeout") is None:
                    item.add_marker(pytest.mark.timeout(limit_of(cls)))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip the question if the plugin has hung often."""
        hung = self._hung.get(_class(item), [])
        if len(hung) >= HANGS:
            pytest.fail(f"not run, since these have not ended: {', '.join(hung)}", pytrace=False)

    def _wanted(self, item: pytest.Item) -> bool:
        cls = _class(item)
        named = cls is not None and self._plugin in (None, _name(cls))
        return named and self._kind in (None, cls.kind)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write a conformance test's outcome into its report. pytest-xdist sends the report to the main process."""
        report = yield
        cls = _class(item)
        if cls is not None and call.excinfo is not None and has_hung(call.excinfo.value):
            self._hung.setdefault(cls, []).append(item.name)
        if report.when == "setup":
            item.stash[_SETUP_S] = report.duration
        if cls is not None and (report.when == "call" or not report.passed):
            function = getattr(item, "function", None)
            reason = getattr(function, "__rolemesh_override__", None)
            before = item.stash.get(_SETUP_S, 0.0) if report.when == "call" else 0.0
            report.rolemesh_conformance = {  # type: ignore[attr-defined]
                "class": cls.__name__,
                "kind": cls.kind,
                "plugin": _name(cls),
                "test": item.name,
                "outcome": "overridden" if reason and report.passed else report.outcome,
                "reason": reason or "",
                "message": _message(report),
                "seconds": round(before + report.duration, 3),
            }
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a conformance test's outcome."""
        if (result := getattr(report, "rolemesh_conformance", None)) is not None:
            self.results.append(result)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print a line per class, and the reasons of replaced standard tests."""
        by_class: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for result in self.results:
            by_class.setdefault((result["class"], result["plugin"]), []).append(result)
        if by_class:
            terminalreporter.section("rolemesh conformance")
        for (name, plugin), results in by_class.items():
            counts = [
                f"{count} {outcome}"
                for outcome in ("passed", "failed", "skipped", "overridden")
                if (count := sum(result["outcome"] == outcome for result in results))
            ]
            terminalreporter.write_line(f"{name} ({plugin}): {', '.join(counts)}")
            for result in results:
                if result["reason"]:
                    terminalreporter.write_line(f"  overridden: {result['test']}: {result['reason']}")

    def pytest_sessionfinish(self) -> None:
        """Write the report. With pytest-xdist only the main process does."""
        if self._report is not None and not self._is_worker:
            self._report.write_text(json.dumps(self.results, indent=2) + "\n", encoding="utf-8")


def _has_timeout(config: pytest.Config) -> bool:
    """True if the project limits the time of its tests (pytest-timeout)."""
    return bool(config.getoption("timeout", None) or config.getini("timeout") or os.environ.get("PYTEST_TIMEOUT"))


def _class(item: pytest.Item) -> Any:
    """Return the conformance class of a test, or None."""
    cls = getattr(item, "cls", None)
    return cls if cls is not None and hasattr(cls, "kind") and hasattr(cls, "timeout_s") else None


def _name(cls: Any) -> str:
    """Return the plugin under test of a conformance class."""
    if isinstance(cls.plugin, str):
        return cls.plugin.rpartition(":")[2]
    return str(getattr(cls.plugin, "__name__", None) or cls.plugin.name)  # of the record that declares a kind


def _message(report: pytest.TestReport) -> str:
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else str(report.longrepr)
