"""The writer of ``events.jsonl`` and ``metrics.jsonl``. It waits for the disk, warns, and publishes nothing before."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import HANG_S, until

from rolemesh.api.observer import Event, StepMetrics
from rolemesh_durable.master import publication
from rolemesh_durable.master.publication import Publication


class Heard:
    """The notifications to observers and to the master, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.written: list[tuple[int, bool]] = []
        self.changed = threading.Condition()

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        with self.changed:
            self.told.append((hook, next(iter(arguments.values()))))
            self.changed.notify_all()

    def __call__(self, step: int, held: bool) -> None:
        with self.changed:
            self.written.append((step, held))
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, HANG_S)


def line(step: int) -> StepMetrics:
    return StepMetrics(step, 1, 100.0 + step, {}, {}, {})


def steps_in(folder: Path) -> list[int]:
    return [json.loads(text)["step"] for text in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def started(heard: Heard, folder: Path) -> Publication:
    written = Publication(folder, heard, heard)
    written.start()
    return written


def test_observers_and_the_master_hear_of_what_is_written(started: Publication, heard: Heard, folder: Path) -> None:
    event = Event(1, 1, 5.0, "job_started", {})
    started.add([event])
    started.add([line(0), line(1)])
    heard.until(lambda: (1, False) in heard.written)

    assert steps_in(folder) == [0, 1]
    assert json.loads((folder / "events.jsonl").read_text())["seq"] == 1
    assert heard.told[0] == ("event", event)
    assert [one.step for hook, lines in heard.told if hook == "steps_finished" for one in lines] == [0, 1]
    started.close()
    assert started.wait(HANG_S)
    assert started.give_up() == ""


def test_a_new_master_hears_at_once_how_far_the_last_one_came(started: Publication, heard: Heard, folder: Path) -> None:
    started.add([line(0), line(1)])
    started.close()
    assert started.wait(HANG_S)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":2,"torn')

    successor = Heard()
    another = Publication(folder, successor, successor)
    another.start()
    successor.until(lambda: bool(successor.written))
    assert successor.written == [(1, False)]
    another.add([line(2)])
    another.close()
    assert another.wait(HANG_S)
    assert steps_in(folder) == [0, 1, 2]


def test_a_disk_that_takes_nothing_is_waited_for_and_nothing_is_told_meanwhile(
    started: Publication, heard: Heard, folder: Path
) -> None:
    started.add([line(0)])
    heard.until(lambda: (0, False) in heard.written)
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()  # every try to open it fails
    started._metrics.close()
    started.add([line(1)])
    heard.until(lambda: (-1, True) in heard.written)

    assert "metrics and events cannot be written since" in started.warning
    assert "Is a directory" in started.warning
    assert [hook for hook, _ in heard.told] == ["steps_finished"]

    (folder / "metrics.jsonl").rmdir()
    heard.until(lambda: (1, False) in heard.written)
    assert (started.warning, steps_in(folder)) == ("", [1])
    started.close()
    assert started.wait(HANG_S)


def test_lines_that_were_never_written_are_reported(heard: Heard, folder: Path) -> None:
    (folder / "events.jsonl").mkdir()
    hopeless = Publication(folder, heard, heard)
    hopeless.start()
    hopeless.add([line(0), line(1)])
    hopeless.close()
    heard.until(lambda: (-1, True) in heard.written)

    assert not hopeless.wait(0)
    said = hopeless.give_up()
    assert said.startswith(f"2 events and lines of metrics are not written to {folder}: ")
    assert hopeless.wait(HANG_S)


def test_more_than_may_wait_is_seen(heard: Heard, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "MOST_WAITING", 2)
    waiting = Publication(folder, heard, heard)
    waiting.add([line(0), line(1)])
    assert not waiting.full
    waiting.add([line(2)])
    assert waiting.full
    waiting.start()
    heard.until(lambda: (2, False) in heard.written)
    until(lambda: not waiting.full)
    waiting.close()
    assert waiting.wait(HANG_S)
