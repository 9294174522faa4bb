"""The actions of an episode and their answers, from which another rank can restore it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["ActionLog", "LoggedAction", "RestorePlan", "digest"]

_encode = msgspec.json.Encoder(order="deterministic").encode


class LoggedAction(msgspec.Struct, frozen=True):
    """One answered action. `kind`: "call" or "reply". `limit`: its seconds.

    `expected`: the digest of its answer; "" if it was late, since it may be in time when it is repeated.
    """

    kind: str
    given: Mapping[str, Any]
    expected: str
    limit: float
    repeatable: bool = True


class RestorePlan(msgspec.Struct, frozen=True):
    """How an episode is restored: from `state`, or from its begin if that is None, and then by repeating `actions`."""

    state: bytes | None
    actions: tuple[LoggedAction, ...]

    @property
    def forbidden(self) -> LoggedAction | None:
        """The first action that must not be repeated; None if the plan can be carried out."""
        return next((action for action in self.actions if not action.repeatable), None)


class ActionLog:
    """The last state of an episode and the actions after it, from which another rank restores the episode."""

    def __init__(self) -> None:
        self._state: bytes | None = None
        self._actions: list[LoggedAction] = []
        self.unrepeatable = False
        """Whether an action that must not be repeated was ever begun in this episode."""

    def begun(self, state: bytes | None) -> None:
        """Note the state after the begin of the episode; None if it has none."""
        self._state, self._actions = state, []

    def answered(
        self, kind: str, given: Mapping[str, Any], limit: float, repeatable: bool, answer: Mapping[str, Any]
    ) -> None:
        """Note an action and its answer, which may have a `state`."""
        state = answer.get("state")
        if state is not None:
            self._state, self._actions = state, []
        else:
            expected = "" if answer.get("late") else digest(answer)
            self._actions.append(LoggedAction(kind, given, expected, limit, repeatable))

    def plan(self) -> RestorePlan:
        """Return how the episode is restored after the last answered action."""
        return RestorePlan(self._state, tuple(self._actions))


def digest(answer: Mapping[str, Any]) -> str:
    """Return a short hash of what an answer says. Times and states do not count."""
    told = {key: value for key, value in answer.items() if key not in ("seconds", "state", "late")}
    return hashlib.blake2b(_encode(told), digest_size=8).hexdigest()
