"""Checkpoints become whole beside the master's loop, several at a time where a job is fast."""

from __future__ import annotations

import hashlib
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rolemesh.graph.logical import LogicalGraph
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_durable.master.background_tasks import BackgroundTasks
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e


class Checkpoints:
    """A run's folder, and the task that completes the checkpoints in it. `keep` is 2."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._answers: SimpleQueue[Any] = SimpleQueue()
        job = SimpleNamespace(
            name="job", job_id="job-1", steps=100, world_sizes={"sink": 1}, base="", run_dir=str(run_dir),
            graph=LogicalGraph("flow", (), ()), snapshots=SimpleNamespace(keep=2, stay=2),
        )  # fmt: skip
        config: Any = SimpleNamespace(
            job=job, plan=None, request=None, hosts={}, versions={}, origin="", origin_step=-1
        )
        launcher: Any = None
        self._tasks = BackgroundTasks(config, launcher, (), self._answers.put)

    def write(self, step: int, attempt: str = "0-0") -> m.Persisted:
        """Write a rank's part of a step's checkpoint, as an agent does; return the agent's report."""
        name, data = disk.state_file("sink", 0, 1), f"state at {step} {attempt}".encode()
        path = disk.step_folder(self.run_dir, step) / disk.attempt_file(name, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return m.Persisted("sink", 0, step, {name: (len(data), hashlib.sha256(data).hexdigest())}, attempt=attempt)

    def complete(self, part: m.Persisted) -> e.CheckpointCommitted:
        """Commit the checkpoint of this part."""
        self._tasks.complete(e.CommitCheckpoint(part.step, (part,)))
        answer: e.CheckpointCommitted = self._answers.get()
        return answer

    def go_back_while_completing(self, part: m.Persisted) -> set[Any]:
        """Search an origin while a checkpoint waits for its commit; return both answers."""
        with self._tasks._completing:
            self._tasks.complete(e.CommitCheckpoint(part.step, (part,)))
            self._tasks.find_origin()
        return {self._answers.get() for _ in range(2)}


@pytest.fixture
def sets(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def test_sets_on_their_way_stay_however_far_a_role_runs_ahead(sets: Checkpoints) -> None:
    parts = {step: sets.write(step) for step in (9, 19, 29, 39)}
    for step in parts:
        assert sets.complete(parts[step]) == e.CheckpointCommitted(step)
    assert [each.step for each in disk.find_checkpoints(sets.run_dir)] == [39, 29]


def test_a_set_of_before_the_job_went_back_to_the_disk_is_not_completed_after(sets: Checkpoints) -> None:
    parts = {step: sets.write(step) for step in (9, 19)}
    assert sets.complete(parts[9]) == e.CheckpointCommitted(9)
    found = sets.go_back_while_completing(parts[19])
    assert found == {e.CheckpointCommitted(-1), e.OriginFound(str(disk.step_folder(sets.run_dir, 9)), 9)}


def test_files_of_an_attempt_get_their_names_with_the_set_also_for_the_second_time(sets: Checkpoints) -> None:
    part = sets.write(9, attempt="0-a")
    assert sets.complete(part) == e.CheckpointCommitted(9)
    (disk.step_folder(sets.run_dir, 9) / disk.MANIFEST).unlink()  # as if the master had died before it
    late = sets.write(9, attempt="0-b")
    assert sets.complete(part) == e.CheckpointCommitted(9)
    assert disk.verify(disk.step_folder(sets.run_dir, 9)) == []
    (disk.step_folder(sets.run_dir, 9) / disk.MANIFEST).unlink()
    assert "is not where the master is" in sets.complete(msgspec.structs.replace(late, attempt="0-c")).error


def test_a_set_that_a_later_one_has_overtaken_is_no_trouble_whatever_is_still_written_of_it(sets: Checkpoints) -> None:
    parts = {step: sets.write(step) for step in (9, 19)}
    assert sets.complete(parts[19]) == e.CheckpointCommitted(19)
    disk.step_folder(sets.run_dir, 9).mkdir()
    assert sets.complete(parts[9]) == e.CheckpointCommitted(19)
    assert disk.newest_intact(sets.run_dir)[0] is not None


def test_files_that_are_not_where_the_master_is_are_trouble(sets: Checkpoints) -> None:
    part = sets.write(9)
    (disk.step_folder(sets.run_dir, 9) / disk.attempt_file(next(iter(part.files)), part.attempt)).unlink()
    answer = sets.complete(part)
    assert answer.step == 9
    assert "is not where the master is" in answer.error


@pytest.mark.parametrize("removed", [True, False])
def test_a_check_of_a_resize_reads_the_newest_snapshot_though_the_one_it_found_is_removed(
    sets: Checkpoints, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    sets.complete(sets.write(9))
    newest = iter([4, 9, 9] if removed else [4, 4])  # step 4 was removed when 9 became complete; or it is damaged
    monkeypatch.setattr(disk, "newest_complete", lambda *_: next(newest))
    monkeypatch.setattr(disk, "states", lambda folder, role: [disk.read_manifest(folder)][1:])
    wanted: Any = SimpleNamespace(dry=True, folder="", sizes={"sink": 1})
    sets._tasks._config.collective = ()
    if removed:
        found = sets._tasks._with_snapshot(e.PlacesFound(wanted))
        assert (found.folder, found.why) == (str(disk.step_folder(sets.run_dir, 9)), "")
    else:
        with pytest.raises(SnapshotError):
            sets._tasks._with_snapshot(e.PlacesFound(wanted))
