"""Stores that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolemesh_durable.stores import Numbered, StateUnavailableError, Store

__all__ = ["BROKEN", "Sound"]

_THREADS = threading.Lock()


class Sound(Store):
    """Keeps the journals of all jobs in one JSON file, behind a lock."""

    def __init__(self, url: str, run_dir: Path, job_id: str) -> None:
        super().__init__(url, run_dir, job_id)
        self.path = Path(run_dir, "journal.json")

    @property
    def place(self) -> str:
        return str(self.path)

    def connect(self) -> None:
        self.jobs()

    def prepare(self) -> None:
        """Nothing to create."""

    def jobs(self) -> dict[str, Any]:
        """The journals."""
        found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return found

    def mine(self) -> dict[str, Any]:
        """The job's journal."""
        found: dict[str, Any] = self.jobs().get(self.job_id, {})
        return found

    def root(self) -> str | None:
        return self.mine().get("root")

    def head(self) -> str | None:
        return self.mine().get("head")

    def records(self, first: int, last: int) -> list[Numbered]:
        found = self.mine().get("records", {}).items()
        return sorted((int(seq), data) for seq, data in found if first <= int(seq) <= last)

    def write(
        self,
        before: str | None,
        after: str,
        *,
        records: Sequence[Numbered] = (),
        first: int | None = None,
        head: str | None = None,
    ) -> bool:
        with self.locked():
            jobs = self.jobs()
            mine = jobs.get(self.job_id, {})
            if mine.get("root") != before:
                return False
            found = {**mine.get("records", {}), **{str(seq): data for seq, data in records}}
            kept = {seq: data for seq, data in found.items() if int(seq) >= (first or 0)}
            self.save(
                {
                    **jobs,
                    self.job_id: {**mine, "root": after, "records": kept, **({} if head is None else {"head": head})},
                }
            )
            return True

    def save(self, jobs: dict[str, Any]) -> None:
        """Replace the file."""
        draft = self.path.with_suffix(f".{threading.get_ident()}.{os.getpid()}")
        draft.write_text(json.dumps(jobs))
        draft.replace(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time, of all processes."""
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def close(self) -> None:
        """Nothing stays open."""


class Eager(Sound):
    """Makes its file as soon as somebody looks."""

    def connect(self) -> None:
        self.path.touch()
        self.path.write_text("{}")


class Fresh(Sound):
    """Begins from scratch where a master prepares it."""

    def prepare(self) -> None:
        self.save({})


class Narrow(Sound):
    """Has room for 64 KiB of a text."""

    def save(self, jobs: dict[str, Any]) -> None:
        for job in jobs.values():
            job["records"] = {seq: data[: 1 << 16] for seq, data in job["records"].items()}
        super().save(jobs)


class Trusting(Sound):
    """Writes without comparing the root with `before`."""

    def write(self, before: str | None, after: str, **what: Any) -> bool:
        return super().write(self.root(), after, **what)


class Hoarding(Sound):
    """Drops no record."""

    def write(self, before: str | None, after: str, *, first: int | None = None, **what: Any) -> bool:
        return super().write(before, after, **what)


class Sharing(Sound):
    """Has one journal for all jobs."""

    def __init__(self, url: str, run_dir: Path, job_id: str) -> None:
        super().__init__(url, run_dir, "job")


class Unlocked(Sound):
    """Looks and then writes, without a lock."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield


class PerProcess(Sound):
    """Has a lock of POSIX, which the threads of a process share."""

    def jobs(self) -> dict[str, Any]:
        found = super().jobs()
        time.sleep(0.01)
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            yield


class Buffering(Sound):
    """Writes a journal to its file with every eighth change."""

    kept: dict[str, Any] | None = None

    def jobs(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.kept)) if self.kept is not None else super().jobs()

    def save(self, jobs: dict[str, Any]) -> None:
        self.kept = jobs
        if int(self.root() or 0) % 8 == 0:
            super().save(jobs)


class Stuck(Sound):
    """Takes a writer that stands still for one that writes, also when it goes on."""

    def block(self, seconds: float) -> None:
        self.path.with_suffix(".stuck").touch()

    def write(self, before: str | None, after: str, **what: Any) -> bool:
        if self.path.with_suffix(".stuck").exists():
            raise StateUnavailableError("somebody else writes", where=self.place, remedy="wait")
        return super().write(before, after, **what)


class Nowhere(Sound):
    """Does not say where it is."""

    @property
    def place(self) -> str:
        return ""


class Alone(Sound):
    """Has a lock for the threads of its own process. The driver's other master is another process."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        with _THREADS:
            yield


class Twofold(Sound):
    """Writes the records, and then the root, so that others see one without the other."""

    def save(self, jobs: dict[str, Any]) -> None:
        old = super().jobs().get(self.job_id, {})
        super().save({**jobs, self.job_id: {**jobs[self.job_id], "root": old.get("root")}})
        super().save(jobs)


class Headless(Sound):
    """Forgets the head with the next write that has none."""

    def write(self, before: str | None, after: str, *, head: str | None = None, **what: Any) -> bool:
        return super().write(before, after, head=head or "", **what)


class Prefixed(Sound):
    """Finds the records of all jobs whose names begin with this one's."""

    def records(self, first: int, last: int) -> list[Numbered]:
        found: dict[int, str] = {}
        for job, journal in self.jobs().items():
            if job.startswith(self.job_id):
                found |= {int(seq): data for seq, data in journal["records"].items() if first <= int(seq) <= last}
        return sorted(found.items())


class Remembering(Sound):
    """Remembers the root that it has written, also after another writer has changed it."""

    last: str | None = None

    def root(self) -> str | None:
        return self.last if self.last is not None else super().root()

    def write(self, before: str | None, after: str, **what: Any) -> bool:
        done = super().write(before, after, **what)
        self.last = after if done else self.last
        return done


KNOWN = "test_only_a_writer_that_knows_the_root_writes"
ONE = "test_one_of_several_simultaneous_writers_succeeds"
APIECE = "test_one_of_two_processes_that_write_succeeds"
WHOLE = "test_acknowledged_records_survive_sigkill_of_the_writer"
APART = "test_jobs_do_not_see_each_other"
BROKEN: dict[type[Store], set[str]] = {
    Eager: {"test_reading_before_the_first_write_finds_and_makes_nothing"},
    Fresh: {"test_preparing_twice_changes_nothing"},
    Narrow: {"test_the_next_writer_finds_all_written_records"},
    Trusting: {KNOWN},
    Hoarding: {"test_records_are_dropped_together_with_their_replacement"},
    Sharing: {APART},
    Unlocked: {APIECE},
    PerProcess: {ONE},
    Buffering: {WHOLE},
    Stuck: {"test_a_stopped_writer_does_not_block_the_others_for_ever"},
    Nowhere: {"test_it_reports_its_address"},
    Alone: {APIECE},
    Twofold: {WHOLE},
    Headless: {KNOWN},
    Prefixed: {APART},
    Remembering: {KNOWN},
}
