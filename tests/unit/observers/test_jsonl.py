"""The `jsonl` observer: whole lines, values at the top level, and reading them back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rolemesh.builtin.jsonl import JsonlObserver, read_metrics
from rolemesh.observer import Event, RoleTimes, RunInfo, StepMetrics
from rolemesh.workload import NoOptions


def line(step: int, **values: float) -> StepMetrics:
    times = {"trainer": RoleTimes(1.0, 0.5, 0.25)}
    return StepMetrics(step, 1, 100.0 + step, values, {"trainer.train": dict(values)}, times, {"a → b": 1.0}, {})


def started(run_dir: Path) -> JsonlObserver:
    observer = JsonlObserver(NoOptions())
    observer.job_started(RunInfo("job", str(run_dir), 10, {"trainer": 1}, ("trainer.train",)))
    return observer


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_a_line_per_step_has_every_value_at_its_top_level(tmp_path: Path) -> None:
    observer = started(tmp_path)
    observer.steps_finished((line(0, reward=0.25, loss=1.5), line(1, reward=0.5)))

    first, second = lines_of(tmp_path / "metrics.jsonl")
    assert first == {
        "step": 0,
        "steps": 1,
        "time": 100.0,
        "reward": 0.25,
        "loss": 1.5,
        "operators": {"trainer.train": {"reward": 0.25, "loss": 1.5}},
        "roles": {"trainer": {"computing_s": 1.0, "waiting_s": 0.5, "blocked_s": 0.25}},
        "staleness": {"a → b": 1.0},
        "records": {},
    }
    assert (second["step"], second["reward"]) == (1, 0.5)


def test_a_metric_never_replaces_a_field_of_the_line(tmp_path: Path) -> None:
    observer = started(tmp_path)
    values = {"step": 99.0, "staleness": 7.0, "time": -1.0}
    observer.steps_finished((StepMetrics(3, 1, 103.0, values, {"a.b": values}, {}, {"a → b": 1.0}),))

    (written,) = lines_of(tmp_path / "metrics.jsonl")
    assert (written["step"], written["time"], written["staleness"]) == (3, 103.0, {"a → b": 1.0})
    assert written["operators"] == {"a.b": values}


def test_each_event_is_a_line(tmp_path: Path) -> None:
    observer = started(tmp_path)
    observer.event(Event(1, 1, 5.0, "job_started", {}))
    observer.event(Event(2, 1, 6.0, "failure", {"message": "two\nlines", "path": Path("x")}))

    assert lines_of(tmp_path / "events.jsonl") == [
        {"seq": 1, "epoch": 1, "time": 5.0, "kind": "job_started", "data": {}},
        {"seq": 2, "epoch": 1, "time": 6.0, "kind": "failure", "data": {"message": "two\nlines", "path": "x"}},
    ]


def test_lines_are_there_before_the_job_ends(tmp_path: Path) -> None:
    observer = started(tmp_path)
    for step in range(3):
        observer.steps_finished((line(step, reward=0.0),))
        assert len(lines_of(tmp_path / "metrics.jsonl")) == step + 1


def test_a_torn_last_line_is_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    observer = started(tmp_path)
    observer.steps_finished((line(0, reward=1.0),))
    observer.job_ended({})
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step":1,"padding":"' + b"x" * 100_000)

    started(tmp_path).steps_finished((line(1, reward=2.0),))

    assert path.read_bytes().startswith(whole)
    assert [written["reward"] for written in lines_of(path)] == [1.0, 2.0]


def test_a_file_that_is_one_torn_line_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"seq":1')
    started(tmp_path).event(Event(1, 1, 5.0, "job_started", {}))

    assert [event["seq"] for event in lines_of(tmp_path / "events.jsonl")] == [1]


def test_what_json_cannot_say_is_null_and_numpy_values_are_numbers(tmp_path: Path) -> None:
    observer = started(tmp_path)
    metrics = line(0, loss=math.nan, top=math.inf)
    metrics.records = {"scores": np.float32([0.5, 1.0]), "best": np.int64(3)}
    observer.steps_finished((metrics,))

    (written,) = lines_of(tmp_path / "metrics.jsonl")
    assert (written["loss"], written["top"]) == (None, None)
    assert written["records"] == {"scores": [0.5, 1.0], "best": 3}


def test_metrics_are_read_back_as_they_were(tmp_path: Path) -> None:
    lines = tuple(line(step, reward=step / 4) for step in range(4))
    started(tmp_path).steps_finished(lines)

    assert tuple(read_metrics(tmp_path / "metrics.jsonl")) == lines
    assert tuple(read_metrics(tmp_path / "metrics.jsonl", after=1)) == lines[2:]


def test_reading_leaves_a_line_that_is_still_being_written(tmp_path: Path) -> None:
    started(tmp_path).steps_finished((line(0, reward=1.0),))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":1')

    assert [read.step for read in read_metrics(tmp_path / "metrics.jsonl")] == [0]


def test_reading_where_no_file_is_gives_nothing(tmp_path: Path) -> None:
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == []


@pytest.mark.parametrize("hook", ["event", "steps_finished"])
def test_news_after_the_end_are_dropped(tmp_path: Path, hook: str) -> None:
    observer = started(tmp_path)
    observer.job_ended({})
    getattr(observer, hook)({"event": Event(1, 1, 1.0, "late"), "steps_finished": (line(0),)}[hook])

    assert (tmp_path / "events.jsonl").read_bytes() == (tmp_path / "metrics.jsonl").read_bytes() == b""
