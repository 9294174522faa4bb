"""How lines that grow, and those of several ranks, come after each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolemesh_jobs import logs
from rolemesh_jobs.interleaving import Interleaving, Piece

LINE, PART, END = Piece("line", True), Piece("part", False), Piece("", True)


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([("a", LINE), ("b", LINE), ("a", END)], "[a]line\n[b]line\n[a]\n"),
        ([("a", PART), ("a", PART), ("a", END), ("a", END)], "[a]partpart\n[a]\n"),
        ([("a", PART), ("b", LINE), ("a", LINE)], "[a]part\n[b]line\n[a]line\n"),
        ([("a", PART), ("b", PART), ("a", END), ("b", END)], "[a]part\n[b]part\n"),
        ([("a", Piece("\r1/9", False)), ("a", Piece("\r2/9", False)), ("a", END)], "\r[a]1/9\r[a]2/9\n"),
        ([("a", Piece("\r1/9", False)), ("b", Piece("\r1/9", False)), ("a", LINE)], "\r[a]1/9\r[b]1/9\n[a]line\n"),
        ([("a", Piece("1/9\r", False)), ("a", Piece("2/9\r", False)), ("a", END)], "[a]1/9\r[a]2/9\r[a]\n"),
    ],
    ids=["lines", "grows", "cut off", "two that grow", "bar", "two bars", "bar with the return behind"],
)
def test_each_line_begins_with_its_ranks_prefix(pieces: list[tuple[str, Piece]], shown: str) -> None:
    stream = Interleaving()
    assert "".join(stream.add(who, f"[{who}]", piece) for who, piece in pieces) == shown


def test_a_line_of_somebody_else_does_not_continue_one_that_is_open() -> None:
    stream = Interleaving()
    assert stream.add("a", "", PART) + stream.close() == "part\n"
    assert stream.close() == ""
    assert stream.add("a", "", END) == "", "its line is over"


def test_the_beginning_of_a_line_is_read_when_its_end_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    path = tmp_path / "log"
    path.touch()
    tail = logs.Tail(path)
    with path.open("ab", buffering=0) as log:
        log.write("first\nwhä".encode())
        assert list(tail.pieces()) == [("first", True)]
        now += 0.1
        assert list(tail.pieces()) == []
        now += 0.2
        assert list(tail.pieces()) == [("whä", False)]
        log.write("t ü".encode()[:-1])
        assert list(tail.pieces()) == []
        now += 0.3
        assert list(tail.pieces()) == [("t ", False)], "half a character waits for the other half"
        log.write("ü".encode()[1:] + b"\r\nrest")
        assert list(tail.pieces(rest=True)) == [("ü", True), ("rest", True)]
