"""Conformance of a check: it measures this machine in a process of its own, as an agent has it, and leaves nothing."""

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
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere, still_running

__all__ = ["CheckConformance"]


class _Found(msgspec.Struct):
    """What a check has measured (not all of it need be numbers), or raised, and what its process was left with."""

    values: Any = None
    raised: str = ""
    seconds: float = 0.0
    threads: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    wrote: list[str] = []
    left: list[str] = []


class CheckConformance(PluginConformance):
    """Subclass it with `plugin` and `options`: of little work, and for this machine, where the tests run."""

    kind = "checks"
    alone: ClassVar[bool] = True
    """Whether it measures something on a node that is measured alone. The kit always measures two together as well."""

    @pytest.fixture
    def subject(self, record: PluginRecord, base: Path, checked_options: BaseModel) -> Subject:
        """The check, for another process."""
        return Subject(record, dict(self.options), str(base))

    @pytest.fixture
    def node(self, tmp_path: Path) -> CheckedNode:
        """This machine as a node on which checks run alone."""
        run_dir, shm_dir = tmp_path / "run", tmp_path / "shm"
        for folder in (run_dir, shm_dir):
            folder.mkdir()
        return CheckedNode("node-0", "127.0.0.1", str(run_dir), str(shm_dir), ("node-0",), "1")

    @pytest.fixture
    def measured(self, subject: Subject, node: CheckedNode, request: pytest.FixtureRequest) -> _Found:
        """What it finds here, alone."""
        return once(request, "it does not measure this machine", lambda: self.measure(subject, node))

    def measure(self, subject: Subject, node: CheckedNode) -> _Found:
        """Run the check in a process of its own. Raises `AssertionError` for what it raises, and if it is not done in
        the seconds of its `timeout_s`."""
        limit_s = min(self.timeout_s, subject.loaded()[1].timeout_s)
        answer = ask_elsewhere(_measure_there, subject, msgspec.json.encode(node), cwd=node.run_dir, timeout_s=limit_s)
        found = msgspec.json.decode(answer, type=_Found)
        assert not found.raised, f"measure() raises {found.raised}; this machine fails, so it cannot be tested here"
        return found

    # --------------------------------------------------------------------------------------------------- declaration

    def test_its_options_are_a_checks(self, cls: type[Check]) -> None:
        """`at_least`, `slower` and `timeout_s` say which nodes fail."""
        name = cls.Options.__name__
        assert issubclass(cls.Options, CheckOptions), f"write class {name}(CheckOptions), from rolemesh_durable.checks"

    # ------------------------------------------------------------------------------------------------------ measuring

    def test_it_measures_finite_numbers_by_name(self, measured: _Found) -> None:
        """They are compared with `at_least`, and with those of other nodes; nan is neither more nor less."""
        _numbers(measured.values)
        assert measured.values or not self.alone, "measure() returned no number; say alone = False if it needs others"

    def test_its_numbers_have_the_same_names_each_time(
        self, measured: _Found, subject: Subject, node: CheckedNode
    ) -> None:
        """A node is compared with the others by the names of its numbers."""
        again = self.measure(subject, node).values
        assert again.keys() == measured.values.keys(), f"{sorted(measured.values)} one time, {sorted(again)} the next"

    def test_its_limits_name_numbers_that_it_measures(
        self, measured: _Found, checked_options: BaseModel, subject: Subject, node: CheckedNode
    ) -> None:
        """A limit in `at_least` on another name would never be held against anything."""
        limits: dict[str, float] = checked_options.at_least  # type: ignore[attr-defined]
        unknown = sorted(limits.keys() - measured.values.keys()) if self.alone else []
        assert not unknown, f"at_least names {', '.join(unknown)}; it measures {', '.join(sorted(measured.values))}"

    def test_two_nodes_are_measured_together(self, subject: Subject, node: CheckedNode) -> None:
        """At the same time, in one folder: neither is in the other's way, and both have the same numbers."""
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
        """Neither on disk nor in shared memory, which the job's ranks need next."""
        assert not measured.left, f"it leaves {', '.join(measured.left)}; remove what you write"

    def test_it_writes_in_the_nodes_folders_only(self, measured: _Found) -> None:
        """`CheckedNode.run_dir` and `CheckedNode.shm_dir`: if it is killed, nobody removes what lies elsewhere."""
        assert not measured.wrote, f"it writes outside of run_dir and shm_dir: {', '.join(measured.wrote[:5])}"

    def test_it_leaves_nothing_running(self, measured: _Found) -> None:
        """No process, and no thread that would keep its process from ending: ranks come next."""
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
    """A number as it is; anything else, and what JSON cannot say, in words."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return repr(value)
    return number if isfinite(number) else repr(value)
