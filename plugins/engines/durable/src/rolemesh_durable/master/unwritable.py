"""The end of a job that was asked to end while its journal cannot be written: the master takes no turn then. Pure."""

from __future__ import annotations

from rolemesh_durable.extensions.signals.master import SignalAsked
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.machine import OWNER_START_S
from rolemesh_durable.protocol.master.own_time import OwnTime
from rolemesh_durable.stores import JournalDamagedError

__all__ = ["PATIENCE_S", "JournalGivenUpError", "Wish"]

PATIENCE_S = 10.0
"""Seconds that a request to end the job waits for a write."""


class JournalGivenUpError(JournalDamagedError):
    """The job was asked to end while its journal could not be written: it ends as if it had been killed."""


class Wish:
    """Whether somebody wants the job to end, and for how long a write has kept it from ending.

    Times are the master's own: the seconds in which it was stopped do not count. `lease_s`: how long an owner may be
    silent.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._time = OwnTime()
        self._now = 0.0
        self._heard: float | None = None
        self._disowned = False
        self._since: float | None = None
        self._stuck: float | None = None
        self._reason = ""

    def note(self, event: e.Event) -> None:
        """Note a request to stop, or the owner's sign of life. Call it from the loop's thread."""
        match event:
            case e.StopAsked(reason=reason) | SignalAsked(reason=reason):
                if self._since is None:
                    self._since, self._reason = self._now, reason
            case e.OwnerSeen() | e.Disown():
                self._heard, self._disowned = self._now, isinstance(event, e.Disown)

    def overdue(self, clock: float, *, stuck: bool, owned: bool) -> str:
        """Return why the job should end without a write that is `stuck` now; "" if it should not, or not yet.

        `owned`: the job lives only while its owner does.
        """
        now = self._now = self._time.turn(clock)
        if self._heard is None:
            self._heard = now + OWNER_START_S  # a new job's owner may be late
        if not stuck:
            self._stuck = None
            return ""
        if self._stuck is None:
            self._stuck = now
        if self._since is not None:
            return self._reason if now - max(self._since, self._stuck) >= PATIENCE_S else ""
        lost = owned and not self._disowned and now - max(self._heard + self._lease_s, self._stuck) >= PATIENCE_S
        return f"its driver has not been heard of for {self._lease_s:g} s" if lost else ""
