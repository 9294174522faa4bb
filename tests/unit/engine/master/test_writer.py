"""Writes beside the master's loop: in order, again and again while they may pass, and never twice."""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import HANG_S

from rolemesh_durable.journal.event_log import EventLog, JournalFencedError
from rolemesh_durable.journal.sqlite import SQLITE_FILE
from rolemesh_durable.master import writer
from rolemesh_durable.master.inbox import KEPT, Inbox
from rolemesh_durable.master.writer import GivenUpError, Writer
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e


class Loop:
    """A writer, and a loop that collects when it is woken."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.writer = Writer("test", self.woken.set)

    def until_done(self) -> None:
        while self.writer.busy:
            assert self.woken.wait(HANG_S)
            self.woken.clear()
            self.writer.collect()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.writer.close()


def test_transient_errors_are_retried_in_order_and_reported_meanwhile(loop: Loop) -> None:
    tried: list[str] = []
    warned: list[str] = []
    done: list[str] = []

    def full() -> str:
        tried.append("a")
        warned.append(loop.writer.warning)
        if len(tried) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "a"

    loop.writer.submit("the file", full, done.append)
    loop.writer.submit("the file", lambda: tried.append("b") or "b", done.append)  # type: ignore[func-returns-value]
    loop.until_done()
    assert (tried, done) == (["a", "a", "a", "b"], ["a", "b"])
    assert warned[0] == ""
    assert "the file cannot be written: [Errno 28] No space left" in warned[1]
    assert loop.writer.warning == ""


def test_a_write_that_its_store_does_not_answer_is_reported(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SILENT_S", 0.05)
    answers = threading.Event()
    loop.writer.submit("the journal", lambda: answers.wait(HANG_S))
    while not loop.writer.warning:
        assert not loop.woken.wait(0.05)
    assert loop.writer.warning == "the journal cannot be written: its store has not answered for 0 s"
    answers.set()
    loop.until_done()
    assert loop.writer.warning == ""


def test_a_write_is_given_up_once_the_end_waits_for_it_and_it_has_failed_for_long(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "HURRY_S", 0.2)
    tried: list[float] = []

    def full() -> None:
        tried.append(time.monotonic())
        raise OSError(errno.ENOSPC, "No space left on device")

    loop.writer.submit("the journal", full)
    while len(tried) < 4:
        assert loop.woken.wait(0.01) is False
    assert not loop.writer.hurried
    asked = time.monotonic()
    loop.writer.hurry("Ctrl-C")
    with pytest.raises(GivenUpError, match=r"\(Ctrl-C\): the journal cannot be written: .*No space(.|\n)*--resume"):
        loop.until_done()
    assert tried[-1] - asked > 0.2


def test_a_write_that_fails_once_is_tried_again_however_long_the_end_waits(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.writer.hurry("Ctrl-C")
    monkeypatch.setattr(type(loop.writer), "hurried", True)
    errors = [OSError(errno.EIO, "it passes")]

    def fails_once() -> None:
        if errors:
            raise errors.pop()

    loop.writer.submit("the journal", fails_once)
    loop.until_done()


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "gone"), JournalFencedError("another"), ValueError()]
)
def test_a_permanent_error_is_raised_in_the_loop_and_ends_all_writing(loop: Loop, error: Exception) -> None:
    after: list[Any] = []

    def fails() -> None:
        raise error

    loop.writer.submit("it", fails, after.append)
    loop.writer.submit("it", lambda: None, after.append)
    with pytest.raises(type(error)):
        loop.until_done()
    assert after == []


def test_an_append_waits_for_a_lock_and_is_refused_once_another_epoch_has_taken_over(
    loop: Loop, tmp_path: Path
) -> None:
    written: list[Any] = []
    with EventLog.open("sqlite", tmp_path, "job") as store:
        epoch = store.claim()
        with closing(sqlite3.connect(tmp_path / SQLITE_FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            loop.writer.submit("the journal", lambda: store.append(epoch, [(1.0, "job_started", {})]), written.append)
            while not loop.writer.warning:
                assert not loop.woken.wait(0.05)
            assert "lock" in loop.writer.warning
            other.execute("ROLLBACK")
        loop.until_done()
        assert [event.seq for event in written[0]] == [1]
        with EventLog.open("sqlite", tmp_path, "job") as successor:
            successor.claim()
        loop.writer.submit("the journal", lambda: store.append(epoch, [(1.0, "job_running", {})]), written.append)
        with pytest.raises(JournalFencedError):
            loop.until_done()


def report(seq: int) -> e.FromAgent:
    return e.FromAgent("a", m.Report("a", 1, seq, "n", "h", 1, "", 1, -1, (), (), ()))


def test_a_long_wait_for_a_turn_keeps_the_newest_reports_and_every_loss() -> None:
    inbox = Inbox()
    lost = [e.AgentLost("b", n, "gone") for n in range(3)]
    for seq in range(1000):
        inbox.put(report(seq))
        inbox.put(e.OwnerSeen())
        if seq % 400 == 0:
            inbox.put(lost[seq // 400])
    kept = inbox.take()
    seqs = [event.message.seq for event in kept if isinstance(event, e.FromAgent)]  # type: ignore[union-attr]
    assert seqs == list(range(1000 - KEPT, 1000))
    assert [event for event in kept if isinstance(event, e.AgentLost)] == lost
    assert len(kept) == KEPT + len(lost) + 1
    assert inbox.take() == []
