"""Conformance of an observer: it is told every kind of life, raises nothing, and leaves nothing but files in the run's
folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random
from typing import Any, ClassVar, get_args

import msgspec
import pytest
from pydantic import BaseModel

from rolemesh.api.observer import StepMetrics
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.observers.lives import HOOKS, Life, Outcome, Told, drawn_metrics, told, whole_life
from rolemesh_testing.observers.watcher import Order, Seen, Trouble, Watcher, watch_there
from rolemesh_testing.pools import Pool, pooled
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere

__all__ = ["ObserverConformance"]


class ObserverConformance(PluginConformance):
    """Subclass it with `plugin` and `options`. Hooks are called as the master and the driver call them."""

    kind = "observers"
    examples: ClassVar[int] = 60
    """How many lives are drawn."""
    simplify: ClassVar[bool] = True
    """Whether to look for the simplest life where a test fails, which takes seconds."""

    @pytest.fixture
    def run_dir(self, tmp_path: Path) -> Path:
        """The folder of a run."""
        folder = tmp_path / "runs" / "job"
        folder.mkdir(parents=True)
        return folder

    @pytest.fixture
    def watcher(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel, request: pytest.FixtureRequest
    ) -> Watcher:
        """The observer."""
        return needed(request, "it cannot be created", lambda: Watcher(record, cls, checked_options))

    @pytest.fixture
    def another(self, record: PluginRecord, cls: type[Any], checked_options: BaseModel) -> Watcher:
        """Another instance of it, with the same options."""
        return Watcher(record, cls, checked_options)

    @pytest.fixture
    def subject(self, record: PluginRecord, watcher: Watcher) -> Subject:
        """The observer, for another process."""
        return Subject(record, dict(self.options), "")

    def pool(self) -> Pool[Life]:
        """The lives that are drawn for all tests of the class."""
        return pooled(Life, drawn_metrics, self.examples)

    # --------------------------------------------------------------------------------------------------- declaration

    def test_it_has_hooks_of_an_observer(self, cls: type[object]) -> None:
        """At least one of them, marked with `rolemesh.hookimpl`; without the mark nobody would ever call it."""
        assert set(hooks_of(cls)) & set(HOOKS), f"none of {', '.join(HOOKS)} is marked with @hookimpl"

    def test_it_is_on_one_side(self, cls: type[Any]) -> None:
        """master: sees everything exactly once; driver: where a person watches."""
        assert cls.side in ("master", "driver"), f"side is {cls.side!r}, neither 'master' nor 'driver'"

    # --------------------------------------------------------------------------------------------------------- lives

    @pytest.mark.parametrize("outcome", get_args(Outcome))
    def test_a_whole_life_is_watched(self, watcher: Watcher, run_dir: Path, outcome: Outcome) -> None:
        """From the start over six steps to the end; done, failed or interrupted."""
        watcher.tell(told(str(run_dir), _six(), outcome=outcome))
        _calm(watcher)

    def test_every_kind_of_event_is_taken(self, watcher: Watcher, run_dir: Path) -> None:
        """All that are journalled, and one that only a later kernel knows: pass over what you do not know."""
        watcher.tell(whole_life(str(run_dir)))
        _calm(watcher)

    @pytest.mark.usefixtures("watcher")
    def test_metrics_of_any_kind_are_taken(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel, run_dir: Path
    ) -> None:
        """None at all, new ones, no numbers, infinite and huge ones, steps that are missing, names like ``../x``."""

        def check(life: Life) -> None:
            watcher = Watcher(record, cls, checked_options)
            watcher.tell(told(str(run_dir), life.metrics))
            _calm(watcher)

        self.pool().check(check, simplify=self.simplify)

    def test_a_job_without_steps_is_watched(self, watcher: Watcher, run_dir: Path) -> None:
        """One that fails before its first step has no metrics, and no step that is the last."""
        watcher.tell(told(str(run_dir), (), outcome="failed"))
        _calm(watcher)

    def test_a_resumed_job_is_watched(self, watcher: Watcher, run_dir: Path) -> None:
        """Its first step is not step 0."""
        watcher.tell(told(str(run_dir), _six()[3:], origin=str(run_dir / "snapshots" / "2")))
        _calm(watcher)

    def test_it_goes_on_after_the_masters_restart(self, watcher: Watcher, another: Watcher, run_dir: Path) -> None:
        """A new process begins again in a folder in which the old one was killed in the middle."""
        life = whole_life(str(run_dir))
        watcher.tell(life[: len(life) - 3])
        another.tell([life[0], *life[len(life) - 3 :]])
        _calm(watcher)
        _calm(another)

    @pytest.mark.usefixtures("watcher")
    def test_hooks_in_any_order_are_taken(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel, run_dir: Path
    ) -> None:
        """Whoever joins late, or leaves early, is told a part; only that `job_started` comes first is sure."""

        def check(life: Life) -> None:
            random = Random(life.shuffle)
            start, *calls = whole_life(str(run_dir))
            some = [start, *random.sample(calls, random.randint(1, len(calls)))]
            watcher = Watcher(record, cls, checked_options)
            watcher.tell(some)
            _calm(watcher)

        self.pool().check(check, simplify=False)

    def test_one_instance_watches_twice(self, watcher: Watcher, run_dir: Path) -> None:
        """A second life finds nothing of the first in its way, and none of its numbers."""
        for name in ("first", "second"):
            (run_dir / name).mkdir()
            watcher.tell(told(str(run_dir / name), _six()))
        _calm(watcher)
        assert _files(run_dir / "first") == _files(run_dir / "second"), "the second life has left other files"

    def test_two_jobs_in_one_process_do_not_mix(self, watcher: Watcher, another: Watcher, run_dir: Path) -> None:
        """In a notebook, or in tests; each has its own instance and its own folder."""
        lives = []
        for name in ("first", "second"):
            (run_dir / name).mkdir()
            lives.append(told(str(run_dir / name), _six()))
        for one, other in zip(*lives, strict=True):
            watcher.tell([one])
            another.tell([other])
        _calm(watcher)
        _calm(another)
        assert _files(run_dir / "first") == _files(run_dir / "second"), "two jobs at once leave different files"

    def test_a_status_is_taken_many_times(self, watcher: Watcher, run_dir: Path) -> None:
        """A few times a second, for days; none of them may cost a thread or a file descriptor."""
        calls = whole_life(str(run_dir))
        status = next(call for call in calls if call[0] == "status")
        watcher.tell([calls[0], *[status] * 20])
        before = threading.active_count(), _descriptors()
        watcher.tell([status] * 500)
        after = threading.active_count(), _descriptors()
        watcher.tell(calls[-1:])
        _calm(watcher)
        grown = any(now > then for now, then in zip(after, before, strict=True))
        assert not grown, f"500 statuses later threads and file descriptors are {after}, before {before}"

    def test_what_it_is_given_stays_as_it_is(self, watcher: Watcher, run_dir: Path) -> None:
        """Events, metrics and the result are shared with the other observers, and written to files after them."""
        calls = whole_life(str(run_dir))
        before = [_frozen(call) for call in calls]
        watcher.tell(calls)
        for call, was in zip(calls, before, strict=True):
            assert _frozen(call) == was, f"{call[0]}() writes into its argument; copy it first"

    # ------------------------------------------------------------------------------------------------ another process

    def test_it_writes_in_the_runs_folder_only(self, subject: Subject, tmp_path: Path) -> None:
        """`RunInfo.run_dir`; the working folder is somebody's project, and may be another one after a restart."""
        seen = self._seen(subject, tmp_path)
        assert not seen.wrote, f"it writes outside of the run's folder: {', '.join(sorted(set(seen.wrote))[:5])}"

    def test_it_leaves_nothing_running(self, subject: Subject, tmp_path: Path) -> None:
        """No process, and no thread that would keep the master from ending."""
        seen = self._seen(subject, tmp_path)
        assert not seen.threads, (
            f"after job_ended the threads {', '.join(seen.threads)} run on; join them, or daemon=True"
        )
        assert not seen.children, f"after job_ended the processes {', '.join(seen.children)} run on"

    def test_a_folder_that_vanishes_does_not_end_the_process(self, subject: Subject, tmp_path: Path) -> None:
        """Somebody tidies up. It may raise, which is logged; it must not end the process, or hang."""
        self._survive(subject, tmp_path, "vanished")

    def test_a_folder_that_is_none_does_not_end_the_process(self, subject: Subject, tmp_path: Path) -> None:
        """Nothing can be written from the start."""
        self._survive(subject, tmp_path, "no folder")

    def test_a_full_disk_does_not_end_the_process(self, subject: Subject, tmp_path: Path) -> None:
        """Every write raises `OSError` from some point on."""
        self._survive(subject, tmp_path, "full")

    def _survive(self, subject: Subject, tmp_path: Path, trouble: Trouble) -> None:
        seen = self._seen(subject, tmp_path, trouble)
        assert not seen.fatal, seen.fatal[0]

    def _seen(self, subject: Subject, tmp_path: Path, trouble: Trouble = "") -> Seen:
        folder = tmp_path / "elsewhere"
        (folder / "work").mkdir(parents=True)
        order = msgspec.msgpack.encode(Order(str(folder / "run"), trouble))
        answer = ask_elsewhere(watch_there, subject, order, cwd=folder / "work", timeout_s=min(60.0, self.timeout_s))
        return msgspec.msgpack.decode(answer, type=Seen)


def _six() -> tuple[StepMetrics, ...]:
    metrics = [arguments["metrics"] for hook, arguments in whole_life("") if hook == "steps_finished"]
    return tuple(line for lines in metrics for line in lines)


def _calm(watcher: Watcher) -> None:
    found = watcher.fatal + watcher.raised
    assert not found, f"{found[0]}; the job goes on, but without this observer"


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _frozen(call: Told) -> bytes:
    return msgspec.msgpack.encode(call[1])
