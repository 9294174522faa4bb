"""The journal's store: order without gaps, fencing, and all or nothing when it is read back."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from rolemesh.errors import RolemeshError
from rolemesh_durable.journal.event_log import EventLog, JournalFencedError
from rolemesh_durable.journal.sqlite import SQLITE_FILE, SqliteStore
from rolemesh_durable.stores import JournalDamagedError, StateError, StateUnavailableError

CHANGE_RECORD = "update rolemesh_records set data = replace(data,"
CHANGE_ROOT = "update rolemesh_roots set data = replace(data,"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open("sqlite", tmp_path, "job-1") as store:
        yield store


def test_events_come_back_as_they_were_written(store: EventLog, tmp_path: Path) -> None:
    epoch = store.claim()
    data = {"role": "trainer", "rank": 0, "nested": {"list": [1, 2.5, None, "ü\x00"]}}
    written = store.append(epoch, [(1.25, "job_started", {}), (2.125, "rank_up", data)])
    written += store.append(epoch, [(3.0, "rank_up", {"step": 0})])

    with EventLog.open("sqlite", tmp_path, "job-1") as reader:
        assert reader.events() == written
    assert [event.seq for event in written] == [1, 2, 3]
    assert written[1].data == data


def test_events_since_a_number_are_those_after_it(store: EventLog) -> None:
    epoch = store.claim()
    written = store.append(epoch, [(float(i), "rank_up", {"step": i}) for i in range(5)])

    assert store.events(since=3) == written[3:]
    assert store.events(since=5) == []


def test_a_file_that_could_not_be_written_when_it_was_opened_is_opened_again(store: EventLog, tmp_path: Path) -> None:
    epoch = store.claim()
    store.close()
    with closing(sqlite3.connect(f"file:{tmp_path / SQLITE_FILE}?mode=ro", uri=True)) as read_only:
        store.store._kept = read_only  # as SQLite opens a file of a disk that is mounted read-only
        with pytest.raises(StateUnavailableError, match="readonly"):
            store.append(epoch, [(1.0, "rank_up", {})])
    assert [event.seq for event in store.append(epoch, [(1.0, "rank_up", {})])] == [1]


def test_appending_nothing_writes_nothing(store: EventLog) -> None:
    epoch = store.claim()

    assert store.append(epoch, []) == []
    assert store.events() == []


def test_jobs_in_one_database_do_not_see_each_other(tmp_path: Path) -> None:
    with (
        EventLog.open("sqlite:///shared.db", tmp_path, "a") as a,
        EventLog.open("sqlite:///shared.db", tmp_path, "b") as b,
    ):
        a.append(a.claim(), [(1.0, "job_started", {"of": "a"})])
        b.append(b.claim(), [(1.0, "job_started", {"of": "b"})])

        assert [event.data for event in a.events()] == [{"of": "a"}]
        assert [event.data for event in b.events()] == [{"of": "b"}]
    assert (tmp_path / "shared.db").exists()


def test_each_claim_takes_the_next_epoch_and_numbers_go_on(store: EventLog, tmp_path: Path) -> None:
    first = store.claim()
    store.append(first, [(1.0, "job_started", {})])
    with EventLog.open("sqlite", tmp_path, "job-1") as successor:
        second = successor.claim()
        (event,) = successor.append(second, [(2.0, "master_recovered", {})])

    assert (first, second) == (1, 2)
    assert (event.seq, event.epoch) == (2, 2)


def test_a_master_of_an_older_epoch_is_refused_and_writes_nothing(store: EventLog, tmp_path: Path) -> None:
    old = store.claim()
    with EventLog.open("sqlite", tmp_path, "job-1") as successor:
        successor.claim()

        with pytest.raises(StateError, match=r"epoch 1.*epoch 2 has taken the job over"):
            store.append(old, [(1.0, "rank_up", {"step": 7})])
        with pytest.raises(StateError, match="epoch 2 has taken the job over"):
            store.verify(old)
        assert successor.events() == []
        successor.verify(2)


def test_writing_without_a_claim_is_refused(store: EventLog, tmp_path: Path) -> None:
    with EventLog.open("sqlite", tmp_path, "other") as other:
        other.claim()
    with pytest.raises(StateError, match="epoch 1 has not been claimed"):
        store.append(1, [(1.0, "job_started", {})])


def test_reading_where_nothing_was_written_says_so_and_creates_nothing(tmp_path: Path) -> None:
    with EventLog.open("sqlite", tmp_path, "job-1") as store, pytest.raises(StateError, match="no journal of this job"):
        store.events()
    assert list(tmp_path.iterdir()) == []


def _edit(run_dir: Path, statement: str) -> None:
    with closing(sqlite3.connect(run_dir / SQLITE_FILE)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("delete from rolemesh_records where seq = 2", "event 2 is missing, the next one is 3"),
        ("delete from rolemesh_records where seq = 3", "events 3 to 3 are missing"),
        ("delete from rolemesh_records", "events 1 to 3 are missing"),
        (f"{CHANGE_RECORD} '\"step\":1', '\"step\":9') where seq = 2", "event 2 does not match its checksum"),
        (f"{CHANGE_RECORD} '[1,1,', '[1,4,') where seq = 1", "event 1 does not match its checksum"),
        ("update rolemesh_records set data = 'x' where seq = 1", "event 1 does not match its checksum"),
        (f"{CHANGE_ROOT} '[1,', '[0,')", "the job's own row does not match its checksum"),
        (f"{CHANGE_ROOT} ',-1,', ',9,')", "the job's own row does not match its checksum"),
    ],
)
def test_a_damaged_journal_is_never_half_read(store: EventLog, tmp_path: Path, damage: str, message: str) -> None:
    store.append(store.claim(), [(float(i), "rank_up", {"step": i}) for i in range(3)])
    _edit(tmp_path, damage)

    with pytest.raises(JournalDamagedError, match=message) as error:
        store.events()
    assert error.value.remedy
    assert SQLITE_FILE in str(error.value)


def test_a_connection_is_not_used_again_after_an_error_of_the_disk(store: EventLog) -> None:
    class Broken(sqlite3.Connection):
        """Fails as SQLite did on a real disk that failed for a while: an error of the disk, then alleged damage."""

        codes: ClassVar = [sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_CORRUPT]

        def cursor(self, *_: Any) -> Any:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self.codes.pop(0)
            raise error

    epoch = store.claim()
    sqlite = cast("SqliteStore", store.store)
    sqlite.close()
    sqlite._kept = sqlite3.connect(sqlite.path, factory=Broken)
    with pytest.raises(StateUnavailableError, match="disk I/O error"):
        store.append(epoch, [(1.0, "rank_up", {})])
    (event,) = store.append(epoch, [(1.0, "rank_up", {})])
    assert event.seq == 1


def _compacted(store: EventLog, *, keep: int) -> int:
    """A journal of ten events, of which a head stands for the first eight; its epoch."""
    epoch = store.claim()
    store.append(epoch, [(float(i), "rank_up", {"rank": i}) for i in range(10)], committed=7)
    store.compact(epoch, 8, "the first eight", keep)
    return epoch


def test_a_compacted_journal_has_a_summary_and_its_newest_events(store: EventLog) -> None:
    epoch = _compacted(store, keep=5)
    assert [event.seq for event in store.events()] == [6, 7, 8, 9, 10]
    assert [event.seq for event in store.events(7)] == [8, 9, 10]
    assert [event.seq for event in store.events(2, limit=3)] == [6, 7, 8]
    found = store.read()
    assert (found.committed, found.head_seq, found.head) == (7, 8, "the first eight")
    assert [event.seq for event in found.events] == [6, 7, 8, 9, 10]
    (event,) = store.append(epoch, [(11.0, "rank_up", {})])
    assert event.seq == 11
    store.compact(epoch, 11, "all", keep=0)
    assert store.events() == []
    assert store.read().head == "all"
    assert store.claim() == epoch + 1


def test_events_that_no_head_stands_for_are_never_dropped(store: EventLog) -> None:
    epoch = _compacted(store, keep=1)
    assert [event.seq for event in store.events()] == [9, 10]
    store.append(epoch, [], committed=8)
    assert store.read().committed == 8


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("update rolemesh_heads set data = 'x'", "what stands for events 1 to 8 does not match its checksum"),
        ("delete from rolemesh_heads", "what stands for events 1 to 8 is missing"),
        (f"{CHANGE_ROOT} ',8]', ',0]')", "the job's own row does not match its checksum"),
        ("delete from rolemesh_records where seq = 6", "event 6 is missing, the next one is 7"),
    ],
)
def test_a_damaged_head_is_never_read(store: EventLog, tmp_path: Path, damage: str, message: str) -> None:
    _compacted(store, keep=5)
    _edit(tmp_path, damage)
    with pytest.raises(JournalDamagedError, match=message):
        store.read()


def test_a_record_whose_confirmation_was_lost_is_not_written_twice(store: EventLog, tmp_path: Path) -> None:
    epoch = store.claim()
    entries = [(1.0, "rank_up", {"rank": i}) for i in range(3)]
    before = store._root
    written = store.append(epoch, entries, committed=1)
    store._root = before  # as if the connection had broken between the commit and its confirmation
    assert store.append(epoch, entries, committed=1) == written
    assert [event.seq for event in store.events()] == [1, 2, 3]
    with EventLog.open("sqlite", tmp_path, "job-1") as successor:
        successor.claim()
    store._root = before
    with pytest.raises(JournalFencedError):
        store.append(epoch, entries, committed=1)


def test_a_journal_of_an_older_rolemesh_is_refused_with_a_remedy(tmp_path: Path) -> None:
    _edit(tmp_path, "create table rolemesh_jobs (job_id text)")
    with (
        EventLog.open("sqlite", tmp_path, "job-1") as store,
        pytest.raises(StateError, match="older rolemesh") as error,
    ):
        store.events()
    assert "events.jsonl" in str(error.value)


def test_a_journal_has_its_room_before_it_needs_it(store: EventLog, tmp_path: Path) -> None:
    epoch = store.claim()
    size = lambda: sum(path.stat().st_blocks for path in tmp_path.iterdir())  # noqa: E731
    before = size()
    for step in range(300):
        store.append(epoch, [(1.0, "rank_up", {"pad": "x" * 500})] * 5, committed=step)
    assert size() == before


def test_a_file_that_is_no_database_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / SQLITE_FILE).write_bytes(b"not a database, " * 512)

    with pytest.raises(StateError, match="damaged") as error:
        EventLog.open("sqlite", tmp_path, "job-1")
    assert str(tmp_path) in str(error.value)


def test_an_overwritten_page_is_refused(store: EventLog, tmp_path: Path) -> None:
    written = store.append(store.claim(), [(float(i), "rank_up", {"text": "x" * 500}) for i in range(100)])
    store.close()
    path = tmp_path / SQLITE_FILE
    data = path.read_bytes()
    pages = [at for at in range(0, len(data), 4096) if b"rank_up" in data[at : at + 4096]]
    refused = 0
    for at in pages:
        path.write_bytes(data[:at] + os.urandom(4096) + data[at + 4096 :])
        try:
            with EventLog.open("sqlite", tmp_path, "job-1") as reader:
                assert reader.events() == written, "nothing is read in part"
        except JournalDamagedError:
            refused += 1
    assert refused > len(pages) / 2


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("nonsense", "there is no store 'nonsense'"),
        ("nosuchdb://host/x", "there is no store 'nosuchdb'"),
        ("postgresql://host:port/x", "not a database URL"),
        ("postgresql+pg8000://host/x", "driver of this database is not installed"),
    ],
)
def test_an_url_that_cannot_work_is_refused_with_a_remedy(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(RolemeshError, match=message) as error:
        EventLog.open(url, tmp_path, "job-1")
    assert error.value.remedy


def test_a_folder_that_cannot_be_written_is_an_error_with_its_place(tmp_path: Path) -> None:
    store = EventLog.open("sqlite:///missing/folder/x.db", tmp_path, "job-1")
    with pytest.raises(StateError, match="cannot be reached") as error:
        store.claim()
    assert "missing/folder/x.db" in str(error.value)


def test_claims_at_the_same_moment_get_different_epochs(tmp_path: Path) -> None:
    epochs: list[int] = []
    start = threading.Barrier(4)

    def claim() -> None:
        with EventLog.open("sqlite", tmp_path, "job-1") as store:
            start.wait()
            epochs.append(store.claim())

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(epochs) == [1, 2, 3, 4]


def _write_forever(run_dir: Path, acknowledged: Any) -> None:
    store = EventLog.open("sqlite", run_dir, "job-1")
    epoch = store.claim()
    while True:
        last = store.append(epoch, [(1.0, "rank_up", {"pad": "x" * 50})] * 3)[-1]
        acknowledged.value = last.seq


def test_acknowledged_records_survive_sigkill_of_the_writer(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    acknowledged = spawn.Value("q", 0)
    writer = spawn.Process(target=_write_forever, args=(tmp_path, acknowledged))
    writer.start()
    try:
        while acknowledged.value < 60:
            assert writer.is_alive()
        os.kill(writer.pid or 0, signal.SIGKILL)
    finally:
        writer.kill()
        writer.join()

    with EventLog.open("sqlite", tmp_path, "job-1") as store:
        events = store.events()
        assert len(events) >= acknowledged.value
        assert len(events) % 3 == 0, "a transaction is there as a whole or not at all"
        assert store.claim() == 2


def test_the_default_store_needs_no_sqlalchemy(tmp_path: Path) -> None:
    code = (
        "import sys; from rolemesh_durable.journal.event_log import EventLog;"
        f"EventLog.open('sqlite', {str(tmp_path)!r}, 'job').claim(); sys.exit('sqlalchemy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_server_that_does_not_answer_is_an_error_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be reached") as error:
        EventLog.open("postgresql+psycopg://me:secret@127.0.0.1:1/db", tmp_path, "job-1")
    assert "secret" not in str(error.value)
    assert error.value.remedy


def test_a_torn_or_flipped_end_of_the_file_shows_whole_transactions_only(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    acknowledged = spawn.Value("q", 0)
    (tmp_path / "killed").mkdir()
    writer = spawn.Process(target=_write_forever, args=(tmp_path / "killed", acknowledged))
    writer.start()
    while acknowledged.value < 24:
        assert writer.is_alive()
    writer.kill()
    writer.join()
    main = (tmp_path / "killed" / SQLITE_FILE).read_bytes()
    wal = (tmp_path / "killed" / f"{SQLITE_FILE}-wal").read_bytes()
    frame = 24 + 4096
    salt = wal[16:24]
    live = 32  # SQLite writes its log from the start again and again: behind the newest frame there are old ones
    while wal[live + 8 : live + 16] == salt:
        live += frame
    whole = _read(tmp_path / "whole", main, wal)
    assert len(whole) >= 24
    seen = set()
    for cut in range(live - 1, max(32, live - 12 * frame), -997):
        flipped = bytearray(wal)
        flipped[cut] ^= 0xFF
        for name, damaged in (("torn", wal[:cut]), ("flipped", bytes(flipped))):
            events = _read(tmp_path / f"{name}-{cut}", main, damaged)
            assert events == whole[: len(events)]
            assert len(events) % 3 == 0
            seen.add(len(events))
    assert len(seen) > 2, "the damage has reached the journal"


def _read(folder: Path, main: bytes, wal: bytes) -> list[Any]:
    folder.mkdir()
    (folder / SQLITE_FILE).write_bytes(main)
    (folder / f"{SQLITE_FILE}-wal").write_bytes(wal)
    with EventLog.open("sqlite", folder, "job-1") as store:
        return store.events()
