"""The state that a job's journal leads to, kept beside the master, and the head that replaces compacted events."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable

import msgspec

from rolemesh.api.observer import Event
from rolemesh_durable.journal.event_log import Stored
from rolemesh_durable.master.goodput import Account
from rolemesh_durable.protocol.master.clocks import by_another_clock
from rolemesh_durable.protocol.master.replay import follow
from rolemesh_durable.protocol.master.state import JobState

__all__ = ["History", "read_head", "write_head"]


def write_head(state: JobState, account: Account) -> str:
    """Return the head that replaces all events up to `state`."""
    return b64encode(msgspec.msgpack.encode((state.kept, account))).decode()


def read_head(head: str) -> tuple[JobState, Account]:
    """Return the state that a head replaces, and the account."""
    return msgspec.msgpack.decode(b64decode(head), type=tuple[JobState, Account])


class History:
    """Follows the journal. `apply` takes new events; `head` replaces all of it.

    `fresh` makes the state with which the job's first master began.
    """

    def __init__(self, fresh: Callable[[], JobState], stored: Stored) -> None:
        """Begin with the content of the store."""
        self.account = Account()
        self.seq = stored.head_seq
        """Number of the last event."""
        self._state = fresh()
        if stored.head:
            self._state, self.account = read_head(stored.head)
        self.apply([event for event in stored.events if event.seq > stored.head_seq])
        if self.account.begun is not None:
            self._state.commit(stored.committed)

    def continue_with(self, fresh: JobState, clock: str, now: float, wall: float) -> None:
        """Bring a new master's state to the end of the journal, so that it continues."""
        copied, _ = read_head(self.head())
        fresh.become(copied)
        by_another_clock(fresh, clock, now, wall)

    def apply(self, events: Iterable[Event], committed: int | None = None) -> None:
        """Apply events of the journal."""
        for event in events:
            follow(self._state, event)
            self.account.apply(event)
            self.seq = event.seq
        if committed is not None:
            self._state.commit(committed)

    def head(self) -> str:
        """Return the head that replaces all events so far."""
        return write_head(self._state, self.account)
