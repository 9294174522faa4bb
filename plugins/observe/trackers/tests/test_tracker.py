"""Tests that a tracker sends each line once and in order, after restarts, gaps and times without a service."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from rolemesh.api.observer import Event, Missed, RoleTimes, RunInfo, StepMetrics
from rolemesh.runs.jsonl import event_line, metrics_line
from rolemesh_tracking import Cursor, Line, Note, Refused, Tracker, TrackerOptions
from rolemesh_tracking.config import config
from rolemesh_tracking.lines import flat


class Service(Tracker):
    """A service in memory. It refuses while `away` is an exception."""

    service = "memory"

    def __init__(self, now: float = 0.0, **options: object) -> None:
        super().__init__(TrackerOptions(interval_s=0, **options), lambda: self.clock)
        self.clock = now
        self.away: Exception | None = None
        self.lines: list[Line] = []
        self.notes: list[Note] = []
        self.ended = ""

    def open(self, run: RunInfo, known: Cursor) -> tuple[str, int]:
        return known.run or "run-1", -1

    def send(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        if self.away:
            raise self.away
        self.lines += lines
        self.notes += notes

    def close(self, status: str) -> None:
        self.ended = status

    @property
    def steps(self) -> list[int]:
        return [line.step for line in self.lines]


def line(step: int, **values: float) -> StepMetrics:
    return StepMetrics(step, 1, float(step), values or {"reward": step / 2})


def run(folder: Path) -> RunInfo:
    return RunInfo("job", str(folder), 9, {"a": 1}, ("a.run",))


def written(folder: Path, *lines: StepMetrics) -> None:
    with (folder / "metrics.jsonl").open("ab") as file:
        file.writelines(metrics_line(each)[1] for each in lines)


def test_a_restarted_master_sends_only_what_is_new(tmp_path: Path) -> None:
    first, second = Service(), Service()
    first.job_started(run(tmp_path))
    first.steps_finished((line(0), line(1)))
    written(tmp_path, *map(line, range(4)))
    second.job_started(run(tmp_path))
    second.steps_finished((line(3), line(4)))
    second.job_ended({"status": "failed"})
    assert first.steps + second.steps == [0, 1, 2, 3, 4]
    assert second.ended == "failed"


def test_a_service_that_was_away_gets_everything_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Service()
    tracker.away = OSError("no route")
    tracker.job_started(run(tmp_path))
    for step in range(5000):
        written(tmp_path, line(step))
        tracker.steps_finished((line(step),))
        tracker.clock += 0.01
    with caplog.at_level(logging.INFO, "rolemesh.tracking"):
        tracker.away = None
        tracker.clock += 100
        tracker.steps_finished((line(5000),))
    assert tracker.steps == list(range(5001))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "no route" in caplog.text


def test_a_service_that_is_not_back_in_the_end_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Service()
    tracker.away = OSError("no route")
    tracker.job_started(run(tmp_path))
    tracker.steps_finished((line(0),))
    tracker.job_ended({"status": "done"})
    assert caplog.messages[-1] == "the tracker memory has not sent all metrics of this job; metrics.jsonl has them"


def test_refused_lines_are_not_sent_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Service()
    tracker.job_started(run(tmp_path))
    tracker.away = Refused("bad name")
    tracker.steps_finished((line(0),))
    tracker.away = None
    tracker.steps_finished((line(1),))
    assert tracker.steps == [1]
    assert "leaves out metrics up to step 0" in caplog.text


def test_missed_lines_and_events_are_read_from_the_files(tmp_path: Path) -> None:
    tracker = Service()
    tracker.job_started(run(tmp_path))
    written(tmp_path, line(0), line(1))
    event = Event(1, 1, 1.5, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0})
    (tmp_path / "events.jsonl").write_bytes(b'{"seq": "damaged"}\n' + event_line(event)[1] + b'{"seq"')
    tracker.missed(Missed(lines=2, first_step=0, last_step=1))
    assert tracker.steps == [0, 1]
    assert [(note.seq, note.step, note.kind) for note in tracker.notes] == [(1, 1, "recovered")]


def test_numbers_have_names_of_their_own_and_patterns_choose(tmp_path: Path) -> None:
    operators = {"a.run": {"loss": 1.0, "only": 2.0}, "b.run": {"loss": 3.0}}
    found = StepMetrics(
        0, 1, 0.0, {"loss": 1.0, "x": math.inf}, operators, {"a": RoleTimes(1.0, 2.0, 3.0)}, {"a>b": 1.0}
    )
    assert flat(found, ["loss", "*/loss", "time/*waiting*", "staleness/*"]).values == {
        "loss": 1.0,
        "a.run/loss": 1.0,
        "b.run/loss": 3.0,
        "time/a/waiting_s": 2.0,
        "staleness/a>b": 1.0,
    }
    assert math.isnan(flat(found, ["x"]).values["x"])
    found.steps = 4
    assert flat(found, ["loss", "time/*waiting*"]).values == {"loss": 1.0, "time/a/waiting_s": 0.5}, "per step"


def test_no_two_numbers_get_one_name() -> None:
    names = [
        "x" * 300,
        "x" * 301,
        "x" * 200,
        "",
        "_",
        "time/a/waiting_s",
        "staleness/a>b",
        "a.run/loss",
        "loss",
        "größe",
    ]
    operators = {"a.run": {"loss": 1.0}, "b.run": {"loss": 3.0}}
    own = StepMetrics(0, 1, 0.0, dict.fromkeys(names, 9.0), operators, {"a": RoleTimes(1.0, 2.0, 3.0)}, {"a>b": 1.0})
    found = flat(own, ["*"]).values
    assert len(found) == len(names) + 2 + 3 + 1
    assert found["time/a/waiting_s"] == 9.0
    assert found["rolemesh/time/a/waiting_s"] == 2.0


def test_the_configuration_is_the_job_file_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "roles: {a: {options: {lr: 0.1, max_tokens: 8, tokenizer: t}, env: {HF_TOKEN: hf_x}}}\n"
        "state: postgresql://me:pass@host/db\n"
    )
    assert config(tmp_path) == {
        "roles.a.options.lr": 0.1,
        "roles.a.options.max_tokens": 8,
        "roles.a.options.tokenizer": "t",
        "roles.a.env.HF_TOKEN": "***",
        "state": "postgresql://***@host/db",
    }


@pytest.mark.parametrize("text", ["a: [", "\x00", "", "just text", "a: !!python/object:os.system {}"])
def test_a_damaged_job_file_is_no_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert config(tmp_path) == {}
