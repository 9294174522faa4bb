"""TensorBoard reads back what the observer wrote: each step once, also after a restart of the master."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rolemesh.api.observer import Event, RunInfo, StepMetrics
from rolemesh_tensorboard import TensorBoardObserver, TensorBoardOptions


def line(step: int, **values: float) -> StepMetrics:
    return StepMetrics(step, 1, 1.7e9 + step, values)


def started(folder: Path) -> TensorBoardObserver:
    observer = TensorBoardObserver(TensorBoardOptions(interval_s=0))
    observer.job_started(RunInfo("grpo", str(folder), 4, {}, ()))
    return observer


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def test_importing_the_plugin_imports_no_tensorboard() -> None:
    code = (
        "import sys, rolemesh_tensorboard as p; p.TensorBoardObserver(p.TensorBoardOptions())\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('tensorboard', 'google', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_scalars_events_and_the_job_file_are_read_back(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: grpo\nflow: {model: 'a|b'}\n")
    observer = started(tmp_path)
    observer.steps_finished((line(0, reward=0.25), line(1, reward=math.nan)))
    observer.event(Event(1, 1, 1.7e9, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0}))
    observer.job_ended({"status": "done"})
    found = read(tmp_path)
    assert [(each.wall_time, each.step) for each in found.Scalars("reward")] == [(1.7e9, 0), (1.7e9 + 1, 1)]
    assert math.isnan(found.Scalars("reward")[1].value)
    (note,) = found.Tensors("events/text_summary")
    assert note.step == 1
    assert b"a/0 ready again" in note.tensor_proto.string_val[0]
    assert b"| flow.model | a&#124;b |" in found.Tensors("job file/text_summary")[0].tensor_proto.string_val[0]


def test_a_step_that_two_masters_wrote_appears_once(tmp_path: Path) -> None:
    first = started(tmp_path)
    first.steps_finished((line(0, reward=0.0),))
    cursor = (tmp_path / "trackers" / "tensorboard.json").read_bytes()
    first.steps_finished((line(1, reward=0.1),))
    # The first master is killed before the file says that step 1 was sent.
    (tmp_path / "trackers" / "tensorboard.json").write_bytes(cursor)
    second = started(tmp_path)
    second.steps_finished((line(1, reward=0.1), line(2, reward=0.2)))
    assert [each.step for each in read(tmp_path).Scalars("reward")] == [0, 1, 2]
