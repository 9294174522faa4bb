"""A log that is rotated while somebody follows it. The judge is GNU ``tail -F``, which shows each line once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rolemesh_jobs.logs import Tail


def _copytruncate(log: Path) -> None:
    log.with_name("log.1").write_bytes(log.read_bytes())
    os.truncate(log, 0)


def _rename(log: Path) -> None:
    log.rename(log.with_name("log.1"))


def _delete(log: Path) -> None:
    log.unlink()


@pytest.mark.parametrize("rotate", [_copytruncate, _rename, _delete])
@pytest.mark.parametrize("more", [1, 200], ids=["shorter", "longer"])
def test_a_tail_goes_on_in_a_rotated_log(tmp_path: Path, rotate: Callable[[Path], None], more: int) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthr")
    tail = Tail(log)
    assert [piece.text for piece in tail.pieces()] == ["one", "two"]
    rotate(log)
    later = [f"later {n}" for n in range(more)]
    with log.open("a") as file:
        file.write("\n".join(later) + "\n")

    assert [piece.text for piece in tail.pieces(rest=True)] == ["thr", *later]


def test_a_tail_stays_in_a_renamed_log_until_the_new_one_has_content(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("a", buffering=1) as writer:
        writer.write("one\n")
        tail = Tail(log)
        log.rename(tmp_path / "log.1")
        log.touch()
        writer.write("two\n")
        assert list(tail.lines()) == ["one", "two"]
        log.write_text("three\n")
        writer.write("last\n")

        assert list(tail.lines()) == ["last", "three"]


def test_a_tail_sees_a_truncation_to_the_same_length(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\n")
    tail = Tail(log)
    assert list(tail.lines()) == ["one"]
    log.write_text("two\n")

    assert list(tail.lines()) == ["two"]
