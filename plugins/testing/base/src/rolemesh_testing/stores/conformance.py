"""Conformance of a store: the guarantees for a journal, with writers that race, are killed, and wait for each other."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from rolemesh_durable.stores import StateUnavailableError, Store
from rolemesh_testing.conformance import PluginConformance, needed

__all__ = ["StoreConformance"]

Open = Callable[..., Store]
TURNS = 60
"""Number of changes that two processes make together."""
WAIT_S = 30.0
"""Seconds after which a store reports that the database does not answer."""


class StoreConformance(PluginConformance):
    """Subclass it with `plugin`, and with a `url` of a database that the tests may write. Or replace the fixture
    ``database``.
    """

    kind = "stores"
    url: ClassVar[str] = ""
    """The value of `state` in a job file; if empty, the plugin's name."""

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def database(self) -> str:
        """The URL."""
        return self.url or str(self.plugin)

    @pytest.fixture
    def open_store(
        self, cls: type[Store], database: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> Iterator[Open]:
        """``open_store(job="…")`` connects one more store. Without `job` it is a store of the test's own job."""
        made: list[Store] = []
        mine = f"job-{secrets.token_hex(4)}"

        def make(job: str = mine) -> Store:
            made.append(cls(database, tmp_path, job))
            needed(request, f"nobody can connect to {database}", made[-1].connect)
            return made[-1]

        yield make
        for store in made:
            store.close()

    @pytest.fixture
    def store(self, open_store: Open) -> Store:
        """A prepared store."""
        store = open_store()
        store.prepare()
        return store

    def check_options(self, cls: type[Any], options: BaseModel, base: Path) -> None:
        """There are no options beyond the model."""

    # --------------------------------------------------------------------------------------------------------- tests

    def test_reading_before_the_first_write_finds_and_makes_nothing(self, open_store: Open, tmp_path: Path) -> None:
        """Looking for the journal of a job that never started must not create one."""
        store = open_store()
        assert store.root() is None
        assert list(tmp_path.iterdir()) == []

    def test_preparing_twice_changes_nothing(self, store: Store, open_store: Open) -> None:
        """Each master of a job prepares the store."""
        assert store.write(None, "root", records=[(1, "one")])
        other = open_store()
        other.prepare()
        assert (other.root(), other.records(1, 9)) == ("root", [(1, "one")])

    def test_the_next_writer_finds_all_written_records(self, store: Store, open_store: Open) -> None:
        """The store keeps the root, the records in the order of their numbers, and the head: text of any content and
        length.
        """
        long, odd = "x" * (1 << 20), "ü\\u0000 '\"%s:name\n"
        assert store.write(None, odd, records=[(1, long), (2, odd)], head=odd)
        store.close()
        other = open_store()
        assert (other.root(), other.head()) == (odd, odd)
        assert other.records(1, 2) == [(1, long), (2, odd)]

    def test_only_a_writer_that_knows_the_root_writes(self, store: Store, open_store: Open) -> None:
        """If the root differs, or is missing where one exists, the store writes nothing."""
        assert store.write(None, "first", records=[(1, "one")], head="h")
        other = open_store()
        assert not other.write(None, "second", records=[(2, "two")])
        assert not other.write("no", "second", records=[(2, "two")], first=2, head="other")
        assert not other.write("FIRST", "second")
        found = other.root(), other.records(1, 9), other.head()
        assert found == ("first", [(1, "one")], "h")
        assert other.write("first", "second", records=[(2, "two")])
        assert not store.write("first", "third")
        found = store.root(), store.records(1, 9), store.head()
        assert found == ("second", [(1, "one"), (2, "two")], "h"), "it does not see what another writer has changed"

    def test_records_are_dropped_together_with_their_replacement(self, store: Store) -> None:
        """One write sets both `first` and `head`."""
        store.write(None, "a", records=[(n, str(n)) for n in range(1, 8)])
        assert store.write("a", "b", first=6, head="five")
        assert (store.records(1, 100), store.head()) == ([(6, "6"), (7, "7")], "five")
        assert store.records(7, 7) == [(7, "7")]
        assert store.records(8, 9) == []

    def test_jobs_do_not_see_each_other(self, store: Store, open_store: Open) -> None:
        """Several jobs may share a database, and the name of one may begin like that of another."""
        other = open_store(job=f"{store.job_id}-2")
        other.prepare()
        store.write(None, "mine", records=[(1, "mine")], head="mine")
        other.write(None, "other", records=[(1, "other")], head="other")
        store.write("mine", "again", first=2)
        assert (other.root(), other.records(1, 1), other.head()) == ("other", [(1, "other")], "other")
        assert (store.root(), store.records(1, 1), store.head()) == ("again", [], "mine")

    def test_one_of_several_simultaneous_writers_succeeds(self, store: Store, open_store: Open) -> None:
        """Each root has exactly one successor."""
        store.write(None, "0")
        stores, start, won = [open_store() for _ in range(4)], threading.Barrier(4), []

        def race(mine: Store, name: int) -> None:
            for turn in range(5):
                start.wait()
                if mine.write(str(turn), str(turn + 1), records=[(turn + 1, f"{name}")]):
                    won.append(turn)
                start.wait()

        threads = [threading.Thread(target=race, args=each, daemon=True) for each in zip(stores, range(4), strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [0, 1, 2, 3, 4]
        assert [seq for seq, _ in store.records(1, 9)] == [1, 2, 3, 4, 5]

    def test_one_of_two_processes_that_write_succeeds(
        self, cls: type[Store], database: str, tmp_path: Path, store: Store
    ) -> None:
        """A master that was taken for dead still writes, from another process or node than its successor."""
        spawn = multiprocessing.get_context("spawn")
        start, won = spawn.Barrier(2, timeout=self.timeout_s), [spawn.Value("q", -1) for _ in range(2)]
        store.write(None, "0")
        other, own = ((cls, database, tmp_path, store.job_id, start, mine) for mine in won)
        racer = spawn.Process(target=_race, args=other)
        racer.start()
        try:
            _race(*own)
            racer.join(self.timeout_s)
            assert racer.exitcode == 0, f"the other process that writes has ended with {racer.exitcode}"
        finally:
            racer.kill()
        counts, root = [mine.value for mine in won], int(store.root() or 0)
        assert sum(counts) == root, f"of {root} changes, two processes have made {counts[0]} and {counts[1]}"
        assert [seq for seq, _ in store.records(1, 1 << 30)] == list(range(1, root + 1))

    def test_acknowledged_records_survive_sigkill_of_the_writer(
        self, cls: type[Store], database: str, tmp_path: Path, open_store: Open
    ) -> None:
        """No write is there in part, also for those who read meanwhile."""
        spawn = multiprocessing.get_context("spawn")
        acknowledged, job = spawn.Value("q", 0), f"job-{secrets.token_hex(4)}"
        writer = spawn.Process(target=_write_forever, args=(cls, database, tmp_path, job, acknowledged))
        reader = open_store(job=job)
        reader.prepare()
        writer.start()
        try:
            while acknowledged.value < 20:
                assert writer.is_alive()
                told = acknowledged.value
                before, seen = int(reader.root() or 0), len(reader.records(1, 1 << 30))
                assert before >= told, f"write() has returned {told} times, and a reader finds the root {before}"
                after = int(reader.root() or 0)
                assert 3 * before <= seen <= 3 * after, f"with {seen} records, the root is that of {3 * after}"
        finally:
            writer.kill()
            writer.join()
        store = open_store(job=job)
        root, found = int(store.root() or 0), store.records(1, 1 << 30)
        assert root >= acknowledged.value
        assert [seq for seq, _ in found] == list(range(1, 3 * root + 1))

    def test_a_stopped_writer_does_not_block_the_others_for_ever(
        self, cls: type[Store], store: Store, open_store: Open
    ) -> None:
        """The others get an error that the store is unavailable, and retry. They succeed when the writer goes on."""
        if cls.block is Store.block:
            pytest.skip("it cannot be stalled")
        store.write(None, "0")
        blocker = open_store()
        blocking = threading.Thread(target=_block, args=(blocker, 6.0), daemon=True)
        blocking.start()
        time.sleep(0.5)
        began, refused = time.monotonic(), list[StateUnavailableError]()
        try:
            while True:
                try:
                    assert open_store().write("0", "1")
                    break
                except StateUnavailableError as error:
                    refused.append(error)
                    if time.monotonic() - began > WAIT_S:
                        raise
        finally:
            blocking.join()
        assert open_store().root() == "1"
        assert all(error.remedy for error in refused)

    def test_it_reports_its_address(self, store: Store) -> None:
        """Messages contain it, so that users find the database."""
        assert store.place


def _block(store: Store, seconds: float) -> None:
    with suppress(StateUnavailableError):  # the server has ended it
        store.block(seconds)


def _race(cls: type[Store], url: str, run_dir: Path, job: str, start: Any, won: Any) -> None:
    store = cls(url, run_dir, job)
    store.connect()
    start.wait()
    done = 0
    while (at := int(store.root() or 0)) < TURNS:
        with suppress(StateUnavailableError):
            done += store.write(str(at), str(at + 1), records=[(at + 1, f"{os.getpid()}")])
    won.value = done


def _write_forever(cls: type[Store], url: str, run_dir: Path, job: str, acknowledged: Any) -> None:
    store = cls(url, run_dir, job)
    store.connect()
    store.prepare()
    turn = 0
    while store.write(str(turn) if turn else None, str(turn + 1), records=[(3 * turn + n, "x") for n in (1, 2, 3)]):
        turn += 1
        acknowledged.value = turn
