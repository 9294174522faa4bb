"""Conformance of an observer: it takes every notification, raises nothing, and writes only in the run's folder."""

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
from rolemesh_testing.leftovers import files_below
from rolemesh_testing.observers.lives import HOOKS, Life, Outcome, Told, drawn_metrics, told, whole_life
from rolemesh_testing.observers.watcher import Order, Seen, Trouble, Watcher, watch_there
from rolemesh_testing.pools import Pool, pooled
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere

__all__ = ["ObserverConformance"]


class ObserverConformance(PluginConformance):
    """Subclass it with `plugin` and `options`. The tests call hooks as the master and the driver do."""

    kind = "observers"
    examples: ClassVar[int] = 60
    """Number of drawn lives of jobs."""
    simplify: ClassVar[bool] = True
    """True to search for the simplest life when a test fails, which takes seconds."""

    @pytest.fixture
    def run_dir(self, tmp_path: Path) -> Path:
        """The run's folder."""
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
        """Another instance of the observer with the same options."""
        return Watcher(record, cls, checked_options)

    @pytest.fixture
    def subject(self, record: PluginRecord, watcher: Watcher) -> Subject:
        """The observer, for another process."""
        return Subject(record, dict(self.options), "")

    def pool(self) -> Pool[Life]:
        """The drawn lives, the same for all tests of the class."""
        return pooled(Life, drawn_metrics, self.examples)

    # --------------------------------------------------------------------------------------------------- declaration

    def test_it_has_hooks_of_an_observer(self, cls: type[object]) -> None:
        """The plugin has at least one hook of observers, marked with `rolemesh.hookimpl`. Without the mark nobody calls
        it.
        """
        assert set(hooks_of(cls)) & set(HOOKS), f"none of {', '.join(HOOKS)} is marked with @hookimpl"

    def test_it_is_on_one_side(self, cls: type[Any]) -> None:
        """master: the observer gets every notification exactly once; driver: it runs where the user watches."""
        assert cls.side in ("master", "driver"), f"side is {cls.side!r}, neither 'master' nor 'driver'"

    # --------------------------------------------------------------------------------------------------------- lives

    @pytest.mark.parametrize("outcome", get_args(Outcome))
    def test_a_whole_life_is_watched(self, watcher: Watcher, run_dir: Path, outcome: Outcome) -> None:
        """The job starts, runs six steps, and ends as done, failed or interrupted."""
        watcher.tell(told(str(run_dir), _six(), outcome=outcome))
        _calm(watcher)

    def test_every_kind_of_event_is_taken(self, watcher: Watcher, run_dir: Path) -> None:
        """The test sends all journalled kinds, and one that only a later kernel knows. The observer must ignore unknown
        kinds.
        """
        watcher.tell(whole_life(str(run_dir)))
        _calm(watcher)

    @pytest.mark.usefixtures("watcher")
    def test_metrics_of_any_kind_are_taken(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel, run_dir: Path, tmp_path: Path
    ) -> None:
        """No metrics, new ones, no numbers, infinite and huge ones, missing steps, and names like ``../x``, which are
        no files outside of the run's folder.
        """

        def check(life: Life) -> None:
            watcher = Watcher(record, cls, checked_options)
            watcher.tell(told(str(run_dir), life.metrics))
            _calm(watcher)
            beside = [path for path in files_below(tmp_path) if not Path(tmp_path, path).is_relative_to(run_dir)]
            assert beside == before, f"the name of a metric leads out of the run's folder, to {beside[-1]}"

        before = [path for path in files_below(tmp_path) if Path(tmp_path, path) != run_dir]
        self.pool().check(check, simplify=self.simplify)

    def test_a_job_without_steps_is_watched(self, watcher: Watcher, run_dir: Path) -> None:
        """A job that fails before its first step has no metrics and no last step."""
        watcher.tell(told(str(run_dir), (), outcome="failed"))
        _calm(watcher)

    def test_a_resumed_job_is_watched(self, watcher: Watcher, run_dir: Path) -> None:
        """Its first step is not step 0."""
        watcher.tell(told(str(run_dir), _six()[3:], origin=str(run_dir / "snapshots" / "2")))
        _calm(watcher)

    def test_it_goes_on_after_the_masters_restart(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel, watcher: Watcher, run_dir: Path
    ) -> None:
        """A new process starts in the folder in which the old one was killed. Files that grow keep their begin."""
        found = []
        for name, restarts in (("whole", False), ("killed", True)):
            folder = run_dir / name
            folder.mkdir()
            life = whole_life(str(folder))
            one = Watcher(record, cls, checked_options)
            one.tell(life[:-3])
            before = _content(folder)
            other = Watcher(record, cls, checked_options) if restarts else one
            other.tell([*life[:1], *life[-3:]] if restarts else life[-3:])
            _calm(one)
            _calm(other)
            found.append({file: (begun, _content(folder).get(file, b"")) for file, begun in before.items()})
        whole, killed = found
        for file, (begun, end) in whole.items():
            grows = begun and len(end) > len(begun) and end.startswith(begun)
            kept = file not in killed or killed[file][1].startswith(killed[file][0])
            assert kept or not grows, f"after the master's restart, {file} lacks what was there before"

    @pytest.mark.usefixtures("watcher")
    def test_hooks_in_any_order_are_taken(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel, run_dir: Path
    ) -> None:
        """An observer that joins late or leaves early gets a part of the notifications. Only `job_started` always comes
        first.
        """

        def check(life: Life) -> None:
            random = Random(life.shuffle)
            start, *calls = whole_life(str(run_dir))
            some = [start, *random.sample(calls, random.randint(1, len(calls)))]
            watcher = Watcher(record, cls, checked_options)
            watcher.tell(some)
            _calm(watcher)

        self.pool().check(check, simplify=False)

    def test_one_instance_watches_twice(self, watcher: Watcher, run_dir: Path) -> None:
        """The first life does not disturb the second one, and none of its numbers appear there."""
        for name in ("first", "second"):
            (run_dir / name).mkdir()
            watcher.tell(told(str(run_dir / name), _six()))
        _calm(watcher)
        assert files_below(run_dir / "first") == files_below(run_dir / "second"), "the second life has left other files"

    def test_two_jobs_in_one_process_do_not_mix(self, watcher: Watcher, another: Watcher, run_dir: Path) -> None:
        """This happens in a notebook, or in tests. Each job has its own instance and its own folder."""
        lives = []
        for name in ("first", "second"):
            (run_dir / name).mkdir()
            lives.append(told(str(run_dir / name), _six()))
        for one, other in zip(*lives, strict=True):
            watcher.tell([one])
            another.tell([other])
        _calm(watcher)
        _calm(another)
        left = [files_below(run_dir / name) for name in ("first", "second")]
        assert left[0] == left[1], "two jobs at once leave different files"

    def test_a_status_is_taken_many_times(self, watcher: Watcher, run_dir: Path) -> None:
        """A status comes several times per second, for days. None may cost a thread or a file descriptor."""
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

    def test_its_arguments_stay_as_they_are(self, watcher: Watcher, run_dir: Path) -> None:
        """All observers share the events, metrics and result, and the engine writes them to files afterwards."""
        calls = whole_life(str(run_dir))
        before = [_frozen(call) for call in calls]
        watcher.tell(calls)
        for call, was in zip(calls, before, strict=True):
            assert _frozen(call) == was, f"{call[0]}() writes into its argument; copy it first"

    # ------------------------------------------------------------------------------------------------ another process

    def test_it_writes_in_the_runs_folder_only(self, subject: Subject, tmp_path: Path) -> None:
        """Use `RunInfo.run_dir`. The working folder is the user's project, and may differ after a restart."""
        seen = self._seen(subject, tmp_path)
        assert not seen.wrote, f"it writes outside of the run's folder: {', '.join(sorted(set(seen.wrote))[:5])}"

    def test_it_leaves_nothing_running(self, subject: Subject, tmp_path: Path) -> None:
        """The observer leaves no process, and no thread that keeps the master from ending."""
        seen = self._seen(subject, tmp_path)
        assert not seen.threads, (
            f"after job_ended the threads {', '.join(seen.threads)} run on; join them, or daemon=True"
        )
        assert not seen.children, f"after job_ended the processes {', '.join(seen.children)} run on"

    def test_a_folder_that_vanishes_does_not_end_the_process(self, subject: Subject, tmp_path: Path) -> None:
        """A user removes the folder. The observer may raise, which the engine logs. It must not end the process, or
        hang.
        """
        self._survive(subject, tmp_path, "vanished")

    def test_a_file_in_place_of_the_folder_does_not_end_the_process(self, subject: Subject, tmp_path: Path) -> None:
        """The folder cannot be written from the start."""
        self._survive(subject, tmp_path, "no folder")

    def test_a_full_disk_does_not_end_the_process(self, subject: Subject, tmp_path: Path) -> None:
        """From some point on every write raises `OSError`."""
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


def _content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _frozen(call: Told) -> bytes:
    return msgspec.msgpack.encode(call[1])
