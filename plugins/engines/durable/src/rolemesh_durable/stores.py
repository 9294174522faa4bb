"""The API of a store: where a job's journal is kept, so that the next master of the job finds it.

A kind of plugin of this engine's. A job file names a store by its URL, under ``state``.
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
    """The journal is not what was written. Reading it again does not help, so no other master should try."""


class StateUnavailableError(StateError):
    """The store is full, locked, away or slow: the same may succeed later."""


def scheme(url: str) -> str:
    """The name of the store that opens `url`: ``sqlite``, or what stands before ``://`` up to a ``+``."""
    return url.partition("://")[0].partition("+")[0]


class Store(Plugin, ABC):
    """Base of stores (entry-point group ``rolemesh.stores``); a store's name is the scheme of its URLs.

    Of each job it keeps a root, numbered records, and a head that stands for records that were dropped: all of them
    text, whose meaning is not its own. Several jobs may share what `url` names. A store is used by one thread at a
    time. What does not answer is waited for no longer than some seconds, and then `StateUnavailableError` is raised;
    what is there and cannot be read is `JournalDamagedError`. It has no
    options: what it must know is in its URL.
    """

    def __init__(self, url: str, run_dir: Path, job_id: str) -> None:
        """`url` as the job file has it; relative paths in it are relative to `run_dir`. Nothing is opened yet.

        Raises `StateError` for a URL that cannot work.
        """
        self.url, self.run_dir, self.job_id = url, run_dir, job_id

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it is, for messages; without a password."""

    @abstractmethod
    def connect(self) -> None:
        """Raise `StateError` if it cannot be reached. Where nothing has been written yet, nothing is made."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what a job's first `write` needs, with room for a usual journal where that can be reserved."""

    @abstractmethod
    def root(self) -> str | None:
        """The job's root; None if it has none."""

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
        """Make `after` the job's root if it is `before` (None: it has none), and with it all the rest, durably.

        `records` are added; those with numbers below `first` are dropped; `head` takes the place of the head. All of
        that happens or nothing: False says that the root was another one. When it returns, a loss of power takes none
        of it back.
        """

    @abstractmethod
    def records(self, first: int, last: int) -> list[Numbered]:
        """The records from number `first` to `last` that are there, in order."""

    @abstractmethod
    def head(self) -> str | None:
        """The job's head."""

    def block(self, seconds: float) -> None:
        """Rehearsal: nobody can write to the job's journal for so long, as if the store did not answer."""
        raise StateError("this store cannot be stalled", where=self.place, remedy="rehearse other failures")

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""
