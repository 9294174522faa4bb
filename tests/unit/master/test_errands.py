"""Sets of snapshots become whole beside the master's loop, several at a time where a job is fast."""

from __future__ import annotations

import hashlib
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from rolemesh.master.errands import Errands
from rolemesh.protocol import master as machine
from rolemesh.protocol import messages as m
from rolemesh.snapshots import disk


class Sets:
    """A run's folder, and the errand that completes the sets in it. `keep` is 2."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._answers: SimpleQueue[Any] = SimpleQueue()
        config = SimpleNamespace(
            name="job", job_id="job-1", steps=100, world_sizes={"sink": 1}, base="", run_dir=str(run_dir),
            graph=SimpleNamespace(lines=()), snapshots=SimpleNamespace(keep=2),
        )  # fmt: skip
        bundle: Any = SimpleNamespace(config=config, plan=None, hosts={}, plugins={})
        launcher: Any = None
        self._errands = Errands(bundle, launcher, (), self._answers.put)

    def write(self, step: int) -> m.Persisted:
        """What an agent writes of a step, and says of it."""
        name, data = disk.state_file("sink", 0, 1), f"state at {step}".encode()
        path = disk.step_folder(self.run_dir, step) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return m.Persisted("sink", 0, step, {name: (len(data), hashlib.sha256(data).hexdigest())})

    def complete(self, part: m.Persisted) -> machine.SetCompleted:
        """Make the set of this part whole."""
        self._errands.complete(machine.CompleteSet(part.step, (part,)))
        answer: machine.SetCompleted = self._answers.get(timeout=10)
        return answer


@pytest.fixture
def sets(tmp_path: Path) -> Sets:
    return Sets(tmp_path)


def test_a_set_that_made_room_for_later_ones_on_their_way_is_no_trouble(sets: Sets) -> None:
    parts = {step: sets.write(step) for step in (9, 19, 29, 39)}
    assert sets.complete(parts[9]) == machine.SetCompleted(9)
    assert [each.step for each in disk.find_sets(sets.run_dir)] == [39, 29, 9]
    assert sets.complete(parts[19]) == machine.SetCompleted(9)
    assert sets.complete(parts[29]) == machine.SetCompleted(29)


def test_a_set_that_a_later_one_has_overtaken_is_no_trouble_whatever_is_still_written_of_it(sets: Sets) -> None:
    parts = {step: sets.write(step) for step in (9, 19)}
    assert sets.complete(parts[19]) == machine.SetCompleted(19)
    disk.step_folder(sets.run_dir, 9).mkdir()
    assert sets.complete(parts[9]) == machine.SetCompleted(9)
    assert disk.newest_intact(sets.run_dir)[0] is not None


def test_files_that_are_not_where_the_master_is_are_trouble(sets: Sets) -> None:
    part = sets.write(9)
    (disk.step_folder(sets.run_dir, 9) / next(iter(part.files))).unlink()
    answer = sets.complete(part)
    assert answer.step == 9
    assert "is not where the master is" in answer.error
