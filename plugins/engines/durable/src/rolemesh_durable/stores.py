"""The API of a store, a kind of plugin of this engine: it keeps a job's journal for the job's next master.

A job file names a store by its URL, under ``state``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from rolemesh.api.plugin import Plugin
from rolemesh.errors import EXIT_FAILED, RolemeshError
from rolemesh.kinds import Kind

__all__ = ["KIND", "JournalDamagedError", "Numbered", "StateError", "StateUnavailableError", "Store", "scheme"]

KIND = Kind(
    "stores",
    "store",
    "rolemesh_durable.stores:Store",
    ("driver", "master", "command line"),
    listed=False,
    conformance="rolemesh_testing:StoreConformance",
)

Numbered: TypeAlias = tuple[int, str]
"""A record with its number, from 1."""


class StateError(RolemeshError):
    """The journal cannot be read or written, or belongs to another epoch."""

    exit_code = EXIT_FAILED


class JournalDamagedError(StateError):
    """The journal differs from what was written. Reading it again does not help, so no other master should try."""


class StateUnavailableError(StateError):
    """The store is full, locked, away or slow: the same call may succeed later."""


def scheme(url: str) -> str:
    """Return the name of the store that opens `url`: ``sqlite``, or the part before ``://`` up to a ``+``."""
    return url.partition("://")[0].partition("+")[0]


class Store(Plugin, ABC):
    """Base of stores (entry-point group ``rolemesh.stores``); a store's name is the scheme of its URLs.

    For each job a store keeps a root, numbered records, and a head that replaces dropped records. All of them are text
    that the store does not interpret. Several jobs may share one `url`. One thread at a time uses a store. A store
    waits at most some seconds for an answer, and then raises `StateUnavailableError`. For content that cannot be read
    it raises `JournalDamagedError`. It has no options: its URL holds all that it must know.
    """

    def __init__(self, url: str, run_dir: Path, job_id: str) -> None:
        """`url` is as in the job file; relative paths in it are relative to `run_dir`. Nothing is opened yet.

        Raises `StateError` for a URL that cannot work.
        """
        self.url, self.run_dir, self.job_id = url, run_dir, job_id

    @property
    @abstractmethod
    def place(self) -> str:
        """The store's place, for messages; without a password."""

    @abstractmethod
    def connect(self) -> None:
        """Connect.

        Raises `StateError` if the store cannot be reached. If nothing was written yet, this creates nothing.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Create what a job's first `write` needs, with room for a usual journal if that can be reserved."""

    @abstractmethod
    def root(self) -> str | None:
        """Return the job's root; None if it has none."""

    @abstractmethod
    def write(
        self,
        before: str | None,
        after: str,
        *,
        records: Sequence[Numbered] = (),
        first: int | None = None,
        head: str | None = None,
    ) -> bool:
        """Make `after` the job's root if it is `before` (None: it has none), and apply the rest, durably.

        `records` are added, those with numbers below `first` are dropped, and `head` replaces the head. All of that
        happens or nothing: False means that the root was another one. After the return, a loss of power takes none of
        it back.
        """

    @abstractmethod
    def records(self, first: int, last: int) -> list[Numbered]:
        """Return the existing records from number `first` to `last`, in order."""

    @abstractmethod
    def head(self) -> str | None:
        """Return the job's head; None if it has none."""

    def block(self, seconds: float) -> None:
        """Rehearsal: block writes to the job's journal for this many seconds, as if the store did not answer."""
        raise StateError("this store cannot be stalled", where=self.place, remedy="rehearse other failures")

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""
