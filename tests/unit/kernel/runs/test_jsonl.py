"""``events.jsonl`` and ``metrics.jsonl``: whole lines, each once, durable, and read back whatever has befallen them."""

from __future__ import annotations

import json
import logging
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rolemesh.api.observer import Event, RoleTimes, StepMetrics
from rolemesh.runs.jsonl import RESERVED, event_line, metrics_line, read_metrics
from rolemesh_durable.journal.line_file import LineFile, last_line


def line(step: int, **values: float) -> StepMetrics:
    times = {"trainer": RoleTimes(1.0, 0.5, 0.25)}
    return StepMetrics(step, 1, 100.0 + step, values, {"trainer.train": dict(values)}, times, {"a → b": 1.0}, {})


def metrics_file(folder: Path) -> LineFile:
    return LineFile(folder / "metrics.jsonl", "step", 0)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """Files of this process do not grow beyond `size` bytes: a write is cut short there, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_per_step_has_every_value_at_its_top_level(tmp_path: Path) -> None:
    metrics_file(tmp_path).append([metrics_line(line(0, reward=0.25, loss=1.5)), metrics_line(line(1, reward=0.5))])

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


def test_a_metric_may_have_the_name_of_a_field_of_the_line(tmp_path: Path) -> None:
    values = {name: n + 0.5 for n, name in enumerate((*RESERVED, "self", "", "loss", 'a"b,{', "größe ✓"))}
    told = StepMetrics(3, 1, 103.0, values, {"a.b": values}, {}, {"a → b": 1.0}, {"values": {}, "text": "x"})
    metrics_file(tmp_path).append([metrics_line(told), metrics_line(StepMetrics(4, 1, 104.0, {"time": math.nan}))])

    written = lines_of(tmp_path / "metrics.jsonl")[0]
    assert (written["step"], written["time"], written["staleness"]) == (3, 103.0, {"a → b": 1.0})
    assert written["values"] == {name: values[name] for name in RESERVED}
    read, other = read_metrics(tmp_path / "metrics.jsonl")
    assert read == told
    assert math.isnan(other.values["time"])


def test_an_event_is_one_line_whatever_is_in_it() -> None:
    number, encoded = event_line(Event(2, 1, 6.0, "failure", {"message": "two\nlines", "path": Path("x")}))

    assert (number, encoded.count(b"\n")) == (2, 1)
    assert json.loads(encoded)["data"] == {"message": "two\nlines", "path": "x"}


def test_values_that_json_lacks_are_null_and_numpy_values_are_numbers() -> None:
    metrics = line(0, loss=math.nan, top=math.inf)
    metrics.records = {"scores": np.float32([0.5, 1.0]), "best": np.int64(3)}

    written = json.loads(metrics_line(metrics)[1])
    assert (written["loss"], written["top"]) == (None, None)
    assert written["records"] == {"scores": [0.5, 1.0], "best": 3}


def test_records_that_cannot_be_written_do_not_take_the_numbers_along() -> None:
    metrics = line(0, loss=0.5)
    metrics.records = {"text": "\udc80"}

    written = json.loads(metrics_line(metrics)[1])
    assert written["loss"] == 0.5
    assert "surrogates" in written["records"]["error"]


def test_a_new_writer_goes_on_behind_the_last_whole_line(tmp_path: Path) -> None:
    metrics_file(tmp_path).append([metrics_line(line(0, reward=1.0))])
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step":1,"padding":"' + b"x" * 100_000)

    metrics_file(tmp_path).append([metrics_line(line(step, reward=2.0 + step)) for step in range(2)])

    assert path.read_bytes().startswith(whole)
    assert [written["reward"] for written in lines_of(path)] == [1.0, 3.0]


def test_a_file_that_is_one_torn_line_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step":1')
    metrics_file(tmp_path).append([metrics_line(line(0))])

    assert [written["step"] for written in lines_of(tmp_path / "metrics.jsonl")] == [0]


def test_a_write_that_the_disk_takes_in_part_is_cut_back_and_can_be_tried_again(tmp_path: Path) -> None:
    file, path = metrics_file(tmp_path), tmp_path / "metrics.jsonl"
    file.append([metrics_line(line(0, reward=0.0))])
    whole = path.read_bytes()
    more = [metrics_line(line(step, reward=float(step))) for step in range(1, 4)]

    with full_at(len(whole) + len(more[0][1]) + 20):
        for _ in range(2):
            with pytest.raises(OSError, match="too large"):
                file.append(more)
            assert (path.read_bytes(), file.last) == (whole, 0)
    file.append(more)

    assert [written["step"] for written in lines_of(path)] == [0, 1, 2, 3]
    assert file.last == 3


def test_a_folder_that_is_gone_for_a_while_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file = metrics_file(folder)
    file.append([metrics_line(line(0))])
    file.close()
    folder.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        file.append([metrics_line(line(1))])
    (tmp_path / "away").rename(folder)
    file.append([metrics_line(line(1))])

    assert [written["step"] for written in lines_of(folder / "metrics.jsonl")] == [0, 1]


def test_two_masters_that_write_the_same_lines_write_each_once(tmp_path: Path) -> None:
    stopped, successor = metrics_file(tmp_path), metrics_file(tmp_path)
    stopped.append([metrics_line(line(0))])
    successor.append([metrics_line(line(step)) for step in range(3)])
    stopped.append([metrics_line(line(step)) for step in range(1, 4)])
    successor.append([metrics_line(line(step)) for step in range(3, 5)])

    assert [written["step"] for written in lines_of(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_metrics_are_read_back_as_they_were(tmp_path: Path) -> None:
    lines = tuple(line(step, reward=step / 4) for step in range(4))
    metrics_file(tmp_path).append([metrics_line(one) for one in lines])

    assert tuple(read_metrics(tmp_path / "metrics.jsonl")) == lines
    assert tuple(read_metrics(tmp_path / "metrics.jsonl", after=1)) == lines[2:]


def test_reading_leaves_a_line_that_is_still_being_written(tmp_path: Path) -> None:
    metrics_file(tmp_path).append([metrics_line(line(0, reward=1.0))])
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":1')

    assert [read.step for read in read_metrics(tmp_path / "metrics.jsonl")] == [0]


@pytest.mark.parametrize("damage", [b'{"step":1,"ste{"step":2}\n', b"\0\0\n", b"[1]\n", b'{"step":1}\n', b"\xff\n"])
def test_a_damaged_line_is_skipped_with_a_warning_about_its_place(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    first = metrics_line(line(0))[1]
    path.write_bytes(first + damage + metrics_line(line(3))[1])

    with caplog.at_level(logging.WARNING):
        assert [read.step for read in read_metrics(path)] == [0, 3]
    assert f"{path}: the line that ends at byte {len(first + damage)} is damaged, and passed over" in caplog.text


def test_reading_where_no_file_is_gives_nothing(tmp_path: Path) -> None:
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == []


def test_the_last_line_is_the_last_that_is_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert last_line(path) == {}
    path.write_bytes(b'{"seq":1}\n{"seq":2,"data":"' + b"x" * 200_000 + b'"}\n' + b"\0" * 100_000 + b'\n{"seq":3')
    assert last_line(path)["seq"] == 2
    path.write_bytes(b"\0\n")
    assert last_line(path) == {}
