"""The part of a rank's log that concerns its calls: a restarted rank repeats its calls, and decides as before. Pure.

A rank logs each call before the call leaves, the outcome of a call of a service whose outcomes are logged before the
operator sees it, and each session that it begins. A later life asks this history first. So it passes the same calls
to the same ranks, takes known outcomes without asking, and names sessions as before (deterministic re-execution over a
log of events, as in Temporal).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from rolemesh.api.service import ServiceSpec
from rolemesh_durable.extensions.calls.frames import KEY_BYTES
from rolemesh_durable.extensions.calls.states import OpenCall

__all__ = ["ASKED", "BEGUN", "ENDED", "CallHistory", "Decided", "Session", "asked"]

T = TypeVar("T")

ASKED: Final = "calls/asked"
"""The scope of calls that left: the key of the call, the called rank, and that rank's life."""
ENDED: Final = "calls/answered"
"""The scope of outcomes: the key of the call, and the frame of its answer, error or timeout."""
BEGUN: Final = "calls/session"
"""The scope of sessions: the key of the request for one, and its name."""
FORM: Final = re.compile(r"(.+?)/(\d{1,9})#(\d{1,9})/.*", re.DOTALL)
"""The form of a session's name: role/rank#life/key."""


class Decided(Protocol):
    """A decision in the log."""

    @property
    def step(self) -> int:
        """The step in which it was made."""

    @property
    def body(self) -> bytes:
        """The key of a call, and what was decided about it."""


class Session(NamedTuple):
    """A session: a rank, in one of its lives."""

    role: str
    rank: int
    life: int

    def named(self, key: str) -> str:
        """Return the name for users."""
        return f"{self.role}/{self.rank}#{self.life}/{key}"

    @staticmethod
    def parse(name: str) -> Session | None:
        """Return the session of a name; None if it is no such name."""
        found = FORM.fullmatch(name)
        return None if found is None else Session(found[1], int(found[2]), int(found[3]))


def asked(call: OpenCall[T]) -> bytes:
    """Return the decision `ASKED` about a call that leaves."""
    return call.key + call.rank.to_bytes(4, "little") + call.sent_to.to_bytes(4, "little")


class CallHistory:
    """The calls, outcomes and sessions of a rank's former lives."""

    def __init__(self, decisions: Callable[[str], Iterable[Decided]] = lambda scope: ()) -> None:
        """`decisions` returns the decisions of a scope, in order: `SendLog.decisions`."""
        left = list(decisions(ASKED))
        self._left = {
            each.body[:KEY_BYTES]: (
                int.from_bytes(each.body[KEY_BYTES : KEY_BYTES + 4], "little"),
                int.from_bytes(each.body[KEY_BYTES + 4 :], "little"),
            )
            for each in left
        }
        self._outcomes = {each.body[:KEY_BYTES]: each.body[KEY_BYTES:] for each in decisions(ENDED)}
        self._sessions = {each.body[:KEY_BYTES]: each.body[KEY_BYTES:].decode() for each in decisions(BEGUN)}
        self._last = max((each.step for each in left), default=-1)

    def finished(self, step: int) -> None:
        """Note that the rank has finished `step`. It forgets the history once it has repeated all of it."""
        if step >= self._last:
            self._left, self._outcomes, self._sessions = {}, {}, {}

    def outcome(self, key: bytes) -> bytes | None:
        """Return the outcome of a call, as a former life saw it; None if it saw none."""
        return self._outcomes.get(key)

    def session(self, key: bytes) -> str | None:
        """Return the name of the session that a former life began there."""
        return self._sessions.get(key)

    def open(self, key: bytes, spec: ServiceSpec, session: Session | None, role: str, item: T) -> OpenCall[T]:
        """Return a call without an outcome, with the rank to which it goes.

        A session has its rank and life. A call that left before prefers the rank that may know its answer. If its
        service is not repeatable, it goes to this rank in the same life, or nowhere.
        """
        once, (rank, life) = not spec.repeatable, self._left.get(key, (-1, -1))
        left = once and rank >= 0
        if session is not None:
            rank, life = session.rank, session.life
        elif not once:
            life = -1
        return OpenCall(key, role, item, rank=rank, life=life, once=once, left=left)
