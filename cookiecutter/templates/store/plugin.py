"""The store: a job's journal in a JSON file, which is replaced as a whole, so that nothing is there in part."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rolemesh_durable.stores import JournalDamagedError, Numbered, StateUnavailableError, Store

__all__ = ["{{ cookiecutter.__class }}"]

BUSY_S = 2.0
"""How long another writer is waited for, in seconds. The master tries again after that."""


class {{ cookiecutter.__class }}(Store):
    """Keeps root, records and head of each job in a file of its own, in a folder of the run or in one for several jobs.

    A writer holds the lock beside the file. A journal is compacted, so that writing all of it again is cheap.
    """

    def __init__(self, url: str, run_dir: Path, job_id: str) -> None:
        super().__init__(url, run_dir, job_id)
        folder = Path(run_dir, url.partition("://")[2] or "journal").absolute()
        self.path = folder / f"{quote(job_id, safe='')}.json"

    @property
    def place(self) -> str:
        """See `Store`."""
        return f"{self.url.partition('://')[0]}://{self.path}"

    def connect(self) -> None:
        """Look whether what is there can be read."""
        self._read()

    def prepare(self) -> None:
        """Make the folder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def root(self) -> str | None:
        """See `Store`."""
        return self._read().get("root")

    def head(self) -> str | None:
        """See `Store`."""
        return self._read().get("head")

    def records(self, first: int, last: int) -> list[Numbered]:
        """See `Store`."""
        return [(seq, data) for seq, data in self._read().get("records", ()) if first <= seq <= last]

    def write(
        self,
        before: str | None,
        after: str,
        *,
        records: Sequence[Numbered] = (),
        first: int | None = None,
        head: str | None = None,
    ) -> bool:
        """See `Store`: all of it or nothing, and on the disk when it returns."""
        with self._locked():
            found = self._read()
            if found.get("root") != before:
                return False
            kept = [each for each in (*found.get("records", ()), *records) if first is None or each[0] >= first]
            journal = {"root": after, "head": found.get("head") if head is None else head, "records": kept}
            draft = self.path.with_suffix(".new")
            with draft.open("w", encoding="utf-8") as file:
                json.dump(journal, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
            return True

    def block(self, seconds: float) -> None:
        """Rehearsal: hold the lock."""
        with self._locked():
            time.sleep(seconds)

    def close(self) -> None:
        """Nothing stays open."""

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            return found
        except FileNotFoundError:
            return {}
        except ValueError as error:
            remedy = "restore it from a copy, or start again from the run's snapshots: --resume"
            raise JournalDamagedError(f"the journal is no JSON: {error}", where=self.place, remedy=remedy) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock of this job's writers. Raises `StateUnavailableError` if another one keeps it, or the disk fails."""
        until = time.monotonic() + BUSY_S
        try:
            with self.path.with_suffix(".lock").open("w") as lock:
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > until:
                            what, remedy = f"another process has written for {BUSY_S:g} s", "it is tried again"
                            raise StateUnavailableError(what, where=self.place, remedy=remedy) from None
                        time.sleep(0.01)
                yield
        except OSError as error:
            remedy = "make room, or see whether the disk is there"
            raise StateUnavailableError(f"nothing can be written: {error}", where=self.place, remedy=remedy) from error
