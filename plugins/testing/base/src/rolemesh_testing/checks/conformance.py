"""Conformance of a check: it runs in a process of its own, as an agent runs it, and leaves nothing behind."""

from __future__ import annotations

import sys
import time
from math import isfinite
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import msgspec
import pytest
from pydantic import BaseModel

from rolemesh.plugins.discovery import PluginRecord
from rolemesh_durable.checks import Check, CheckedNode, CheckOptions
from rolemesh_testing.conformance import PluginConformance, once
from rolemesh_testing.guard import Guard
from rolemesh_testing.leftovers import still_running
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere

__all__ = ["CheckConformance"]


class _Found(msgspec.Struct):
    """The measurements of a check (not all need be numbers) or its exception, and what still runs in its process."""

    values: Any = None
    raised: str = ""
    seconds: float = 0.0
    threads: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    wrote: list[str] = []
    left: list[str] = []


class CheckConformance(PluginConformance):
    """Subclass it with `plugin` and `options`. The options should ask for little work and fit the machine that runs the
    tests.
    """

    kind = "checks"
    alone: ClassVar[bool] = True
    """True if the check measures something on a node alone. The kit always measures two nodes together as well."""

    @pytest.fixture
    def subject(self, record: PluginRecord, base: Path, checked_options: BaseModel) -> Subject:
        """The check, for another process."""
        return Subject(record, dict(self.options), str(base))

    @pytest.fixture
    def node(self, tmp_path: Path) -> CheckedNode:
        """This machine, as a node that is checked alone."""
        run_dir, shm_dir = tmp_path / "run", tmp_path / "shm"
        for folder in (run_dir, shm_dir):
            folder.mkdir()
        return CheckedNode("node-0", "127.0.0.1", str(run_dir), str(shm_dir), ("node-0",), "1")

    @pytest.fixture
    def measured(self, subject: Subject, node: CheckedNode, request: pytest.FixtureRequest) -> _Found:
        """The check's measurements on this machine alone."""
        return once(request, "it does not measure this machine", lambda: self.measure(subject, node))

    def measure(self, subject: Subject, node: CheckedNode) -> _Found:
        """Run the check in a process of its own.

        Raises `AssertionError` if the check raises, or if it takes longer than its `timeout_s` seconds.
        """
        limit_s = min(self.timeout_s, subject.loaded()[1].timeout_s)
        answer = ask_elsewhere(_measure_there, subject, msgspec.json.encode(node), cwd=node.run_dir, timeout_s=limit_s)
        found = msgspec.json.decode(answer, type=_Found)
        assert not found.raised, f"measure() raises {found.raised}; this machine fails, so it cannot be tested here"
        return found

    # --------------------------------------------------------------------------------------------------- declaration

    def test_its_options_are_a_checks(self, cls: type[Check]) -> None:
        """`at_least`, `slower` and `timeout_s` decide which nodes fail."""
        name = cls.Options.__name__
        assert issubclass(cls.Options, CheckOptions), f"write class {name}(CheckOptions), from rolemesh_durable.checks"

    # ------------------------------------------------------------------------------------------------------ measuring

    def test_it_measures_finite_numbers_by_name(self, measured: _Found) -> None:
        """The engine compares the numbers with `at_least` and with those of other nodes. A nan cannot be compared."""
        _numbers(measured.values)
        assert measured.values or not self.alone, "measure() returned no number; say alone = False if it needs others"

    def test_its_numbers_have_the_same_names_each_time(
        self, measured: _Found, subject: Subject, node: CheckedNode
    ) -> None:
        """The engine compares nodes by the names of their numbers."""
        again = self.measure(subject, node).values
        assert again.keys() == measured.values.keys(), f"{sorted(measured.values)} one time, {sorted(again)} the next"

    def test_its_limits_are_for_numbers_that_it_measures(
        self, measured: _Found, checked_options: BaseModel, subject: Subject, node: CheckedNode
    ) -> None:
        """A limit in `at_least` for a name that the check never measures has no effect."""
        limits: dict[str, float] = checked_options.at_least  # type: ignore[attr-defined]
        unknown = sorted(limits.keys() - measured.values.keys()) if self.alone else []
        assert not unknown, f"at_least names {', '.join(unknown)}; it measures {', '.join(sorted(measured.values))}"

    def test_two_nodes_are_measured_together(self, subject: Subject, node: CheckedNode) -> None:
        """Two checks run at the same time in one folder. They do not disturb each other, and return the same names."""
        pair = tuple(msgspec.structs.replace(node, id=each, together=("a", "b"), attempt="2") for each in ("a", "b"))
        found: dict[str, _Found] = {}
        raised: list[BaseException] = []

        def measure(one: CheckedNode) -> None:
            try:
                found[one.id] = self.measure(subject, one)
            except BaseException as error:
                raised.append(error)

        threads = [Thread(target=measure, args=(one,), daemon=True) for one in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
        for each in found.values():
            _numbers(each.values)
        assert found["a"].values, "measure() returned no number for a node that is measured with another one"
        assert found["a"].values.keys() == found["b"].values.keys(), "two nodes have numbers of different names"

    def test_it_leaves_no_file(self, measured: _Found) -> None:
        """The check leaves no file on disk or in shared memory. The job's ranks need both afterwards."""
        assert not measured.left, f"it leaves {', '.join(measured.left)}; remove what you write"

    def test_it_writes_in_the_nodes_folders_only(self, measured: _Found) -> None:
        """It writes in `CheckedNode.run_dir` and `CheckedNode.shm_dir` only. If a check is killed, files elsewhere stay
        for ever.
        """
        assert not measured.wrote, f"it writes outside of run_dir and shm_dir: {', '.join(measured.wrote[:5])}"

    def test_it_leaves_nothing_running(self, measured: _Found) -> None:
        """It leaves no process, and no thread that keeps its process from ending. The ranks start afterwards."""
        threads, children = ", ".join(measured.threads), ", ".join(measured.children)
        assert not threads, f"after measure() the threads {threads} run on; join them, or daemon=True"
        assert not children, f"after measure() the processes {children} run on"


def _numbers(values: Any) -> None:
    assert isinstance(values, dict), f"measure() returned {values}, not numbers by name"
    for name, value in values.items():
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        assert real, f"measure() returned {name} = {value!r}, which is no finite number"
        assert isfinite(value), f"measure() returned {name} = {value!r}, which is no finite number"


def _measure_there(subject: Subject, order: bytes) -> bytes:
    node = msgspec.json.decode(order, type=CheckedNode)
    cls, options = subject.loaded()
    found, began = _Found(), time.monotonic()
    sys.addaudithook(Guard((Path(node.run_dir), Path(node.shm_dir)), subject.record.target, found.wrote))
    try:
        values = cls(options).measure(node)
        found.values = {str(k): _told(v) for k, v in values.items()} if isinstance(values, dict) else repr(values)
    except Exception as error:
        found.raised = f"{type(error).__name__}: {error}"
    found.seconds = time.monotonic() - began
    found.threads, found.children = still_running()
    found.left = sorted(str(path) for folder in (node.run_dir, node.shm_dir) for path in Path(folder).rglob("*"))
    return msgspec.json.encode(found)


def _told(value: Any) -> Any:
    """Return a number as it is. Anything else, nan and infinity included, becomes text, as JSON cannot represent it."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return repr(value)
    return number if isfinite(number) else repr(value)
