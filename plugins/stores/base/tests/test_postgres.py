"""The journal's store on a real PostgreSQL: the same promises as on SQLite, and those about several machines."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import create_engine, text
from tests.waiting import HANG_S

from rolemesh_durable.journal.event_log import EventLog
from rolemesh_durable.stores import JournalDamagedError, StateError
from rolemesh_store_sql import database

Open = Callable[[], EventLog]


@pytest.fixture
def job() -> str:
    return f"job-{secrets.token_hex(4)}"


@pytest.fixture
def opened(postgres: str, tmp_path: Path, job: str) -> Iterator[Open]:
    """Opens the journal of this test's job, any number of times."""
    stores: list[EventLog] = []

    def make() -> EventLog:
        stores.append(EventLog.open(postgres, tmp_path, job))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_events_come_back_as_they_were_written_with_their_epochs(opened: Open, tmp_path: Path) -> None:
    old, new = opened(), opened()
    with pytest.raises(StateError, match="no journal of this job"):
        old.events()
    first = old.claim()
    written = old.append(first, [(1.1, "job_started", {"ü": [1.5, "\x00"]}), (1792837465.123456, "rank_up", {})])
    second = new.claim()
    with pytest.raises(StateError, match=r"epoch 1.*epoch 2 has taken the job over"):
        old.append(first, [(2.0, "rank_up", {"step": 0})])
    written += new.append(second, [(3.0, "rank_up", {"step": 0})])

    assert opened().events() == written
    assert [event.epoch for event in written] == [1, 1, 2]
    assert list(tmp_path.iterdir()) == []


def test_claims_of_a_new_job_at_the_same_moment_get_different_epochs(opened: Open) -> None:
    epochs: list[int] = []
    start = threading.Barrier(4)
    stores = [opened() for _ in range(4)]

    def claim(store: EventLog) -> None:
        start.wait()
        epochs.append(store.claim())

    threads = [threading.Thread(target=claim, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(epochs) == [1, 2, 3, 4]


def test_a_transaction_that_has_not_ended_is_not_seen(opened: Open, postgres: str, job: str) -> None:
    store = opened()
    epoch = store.claim()
    written = store.append(epoch, [(1.0, "rank_up", {"step": 0})])
    engine = create_engine(postgres)
    with engine.connect() as torn:
        copied = "insert into rolemesh_records select job_id, seq + 1, data"
        torn.execute(text(f"{copied} from rolemesh_records where job_id = '{job}'"))
        assert store.events() == written
    engine.dispose()
    assert store.events() == written


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("delete from rolemesh_records where seq = 2 and job_id = '{job}'", "event 2 is missing, the next one is 3"),
        ("delete from rolemesh_records where seq = 3 and job_id = '{job}'", "events 3 to 3 are missing"),
        (
            "update rolemesh_records set data = replace(data, 'rank', 'x') where seq = 2 and job_id = '{job}'",
            "event 2 does not match its",
        ),
        (
            "update rolemesh_roots set data = replace(data, '[1,', '[0,') where job_id = '{job}'",
            "own row does not match its checksum",
        ),
    ],
)
def test_a_damaged_journal_is_never_half_read(opened: Open, postgres: str, job: str, damage: str, message: str) -> None:
    store = opened()
    store.append(store.claim(), [(float(i), "rank_up", {"step": i}) for i in range(3)])
    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(text(damage.format(job=job)))
    engine.dispose()

    with pytest.raises(JournalDamagedError, match=message):
        store.events()


def _write_forever(url: str, job: str, acknowledged: Any) -> None:
    store = EventLog.open(url, "unused", job)
    epoch = store.claim()
    while True:
        last = store.append(epoch, [(1.0, "rank_up", {"pad": "x" * 50})] * 3)[-1]
        acknowledged.value = last.seq


def _writing(url: str, job: str, until: int) -> tuple[Any, Any]:
    """A process that writes transactions of three events, once it has had `until` events acknowledged."""
    spawn = multiprocessing.get_context("spawn")
    acknowledged = spawn.Value("q", 0)
    writer = spawn.Process(target=_write_forever, args=(url, job, acknowledged))
    writer.start()
    while acknowledged.value < until:
        assert writer.is_alive()
        time.sleep(0.001)
    return writer, acknowledged


def test_acknowledged_records_survive_sigkill_of_the_writer(opened: Open, postgres: str, job: str) -> None:
    writer, acknowledged = _writing(postgres, job, 30)
    writer.kill()
    writer.join()
    successor = opened()
    assert successor.claim() == 2
    events = successor.events()
    assert len(events) >= acknowledged.value
    assert len(events) % 3 == 0, "a transaction is there as a whole or not at all"


def test_acknowledged_writes_survive_sigkill_of_the_server(
    opened: Open, postgres_server: Any, postgres: str, job: str
) -> None:
    writer, acknowledged = _writing(postgres, job, 30)
    server = psutil.Process(postgres_server.get_pid())
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, 10)
    writer.join(HANG_S)
    assert writer.exitcode == 1, "the writer is told that its journal cannot be reached"
    postgres_server.ensure_postgres_running()
    events = opened().events()
    assert len(events) >= acknowledged.value
    assert len(events) % 3 == 0, "a transaction is there as a whole or not at all"


def test_a_master_stopped_in_a_transaction_does_not_keep_its_successor_out(
    opened: Open, postgres: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 2)
    stopped, successor = opened(), opened()
    epoch = stopped.claim()
    in_transaction, may_end = threading.Event(), threading.Event()
    refused: list[BaseException] = []

    def hang() -> None:
        engine = stopped.store._engine
        try:
            with engine.begin() as connection:
                mine = {"job": job}
                connection.execute(text("update rolemesh_roots set data = 'x' where job_id = :job"), mine)
                in_transaction.set()
                may_end.wait()
        except Exception as error:
            refused.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    in_transaction.wait()
    assert successor.claim() == epoch + 1
    may_end.set()
    thread.join()
    assert "idle-in-transaction" in str(refused[0])
    assert successor.events() == []


def test_a_lock_that_is_never_given_back_is_an_error_with_a_remedy(
    opened: Open, postgres: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 1)
    store = opened()
    store.claim()
    engine = create_engine(postgres)
    with engine.begin() as holder:
        holder.execute(text("select * from rolemesh_roots where job_id = :job for update"), {"job": job})
        with pytest.raises(StateError, match="lock timeout") as caught:
            store.claim()
    engine.dispose()
    assert "held the database's lock" in str(caught.value.remedy)


def test_a_store_goes_on_when_the_server_has_been_started_again(opened: Open, postgres_server: Any) -> None:
    store = opened()
    epoch = store.claim()
    os.kill(postgres_server.get_pid(), signal.SIGINT)  # a fast shutdown
    psutil.wait_procs([psutil.Process(postgres_server.get_pid())], 10)
    with pytest.raises(StateError, match="cannot be reached"):
        store.append(epoch, [(1.0, "rank_up", {"step": 0})])
    postgres_server.ensure_postgres_running()
    store.append(epoch, [(1.0, "rank_up", {"step": 0})])
    assert len(store.events()) == 1
