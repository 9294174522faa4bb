"""Work on a run's folder ends when its store does not answer, and says where it is when the store is slow."""

from __future__ import annotations

import io
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.waiting import HANG_S

from rolemesh.errors import RolemeshError
from rolemesh_facts import waiting


def test_a_store_that_stops_answering_in_the_middle_is_an_error_with_place_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LIMIT_S", 0.3)
    monkeypatch.setattr(waiting, "LOOK_S", 0.05)
    over = threading.Event()

    def read(path: Path) -> None:
        if path.name == "3":
            over.wait(HANG_S)

    with pytest.raises(RolemeshError, match=r"has not answered for \d+ s") as raised:
        waiting.answered(tmp_path, lambda: [read(tmp_path / str(number)) for number in range(9)])
    over.set()
    assert raised.value.where == str(tmp_path / "3")
    assert "mounted" in str(raised.value.remedy)


def test_a_slow_store_is_waited_for_and_lines_say_where_the_work_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on while the work reads."""
    now, said = [0.0], io.StringIO()
    monkeypatch.setattr(waiting, "time", SimpleNamespace(**vars(time) | {"monotonic": lambda: now[0]}))
    monkeypatch.setattr(sys, "stderr", said)
    for name, seconds in (("LIMIT_S", 0.5), ("LOOK_S", 0.005), ("SLOW_S", 0.05), ("EVERY_S", 0.1)):
        monkeypatch.setattr(waiting, name, seconds)

    def read(path: Path, told: bool) -> str:
        now[0] += 0.4
        while told and path.name not in said.getvalue():
            time.sleep(0.001)
        return path.name

    def work(told: bool = True) -> int:
        return len([read(tmp_path / f"{number}.jsonl", told) for number in range(12)])

    assert waiting.answered(tmp_path, work) == 12
    lines = said.getvalue().splitlines()
    assert all(line.startswith(f"reading {tmp_path} for ") for line in lines)
    waiting.answered(tmp_path, lambda: work(told=False), quiet=True)
    assert said.getvalue().splitlines() == lines


def test_the_result_and_the_error_of_the_work_are_the_callers(tmp_path: Path) -> None:
    assert waiting.answered(tmp_path, lambda: 3) == 3
    with pytest.raises(KeyError):
        waiting.answered(tmp_path, lambda: {}["no"])
    with pytest.raises(RolemeshError):
        waiting.answered(tmp_path, lambda: time.sleep(2), over=lambda: True)


def test_a_thread_that_just_makes_a_path_is_somewhere_else(tmp_path: Path) -> None:
    ready, over = threading.Event(), threading.Event()

    def work() -> None:
        place = tmp_path / "record"
        half = object.__new__(type(place))  # as pathlib makes it
        ready.set()
        over.wait(HANG_S)
        del half

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(HANG_S)
    try:
        readers = waiting.Readers(tmp_path, thread)
        assert (readers.place, readers.is_alive()) == (str(tmp_path / "record"), True)
        assert readers.still_s() < readers.lasted_s() + 1.0
    finally:
        over.set()
        thread.join()
    assert not readers.is_alive()
