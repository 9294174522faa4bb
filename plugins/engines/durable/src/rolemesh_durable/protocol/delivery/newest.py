"""Newest value: a step takes the newest value that has come, at most `lag` steps old, and the same after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from rolemesh.api.partition import Streaming
from rolemesh.graph.schedule import Period
from rolemesh_durable.protocol.delivery.choosing import Choosing, ChoosingPort
from rolemesh_durable.protocol.delivery.exact import InPort
from rolemesh_durable.protocol.delivery.policy import ConsumerEnd, Delivery
from rolemesh_durable.protocol.rank.effects import Effects

__all__ = ["Newest", "NewestChoice", "NewestPort", "age_in", "encode_age"]

NEVER: Final = -(1 << 62)


class Newest(Choosing):
    """A step takes the newest value that has come, at most `lag` steps old."""

    kind = "newest"

    def port(self, end: ConsumerEnd, effects: Effects[Any]) -> InPort:
        """The consumer's end in a rank."""
        return NewestPort(self, end, effects)


class NewestChoice:
    """The choices of one consumer rank, which never go back: `step` takes the value of producer step `made`."""

    def __init__(self, lag: int, calls: Period, again: Mapping[int, int] | None = None) -> None:
        """`calls` are the steps that take a value.

        `again`: by step, the producer step from which a former generation took its value.
        """
        self._lag, self._calls, self._again = lag, calls, again or {}
        self.step = self.made = NEVER

    @property
    def released(self) -> int:
        """The newest producer step of which no later step takes a value: a newer one was taken, or it is too old."""
        return max(self.made, self._calls.next(self.step + 1) - self._lag) - 1

    def choose(self, step: int, there: Callable[[int], bool]) -> bool:
        """Return True if there is a value for `step`. `there` tells if the value of a producer step has come."""
        made = self._again.get(step)
        newest, oldest = (step, step - self._lag) if made is None else (made, made)
        for made in range(newest, max(oldest, self.made) - 1, -1):
            if there(made):
                self.step, self.made = step, made
                return True
        return False


def encode_age(steps: int) -> bytes:
    """The age of a value as a decision in the send log."""
    return steps.to_bytes(4, "little")


def age_in(body: bytes) -> int:
    """The age in a decision: number of steps since the value was made."""
    return int.from_bytes(body, "little")


class NewestPort(ChoosingPort):
    """One input of an operator call. The port logs its choice before the call, so that a restart takes the same value.

    Several steps may take one value. The port releases it when a step takes a newer one, and never takes an older one.
    """

    _choice: NewestChoice

    def __init__(self, delivery: Delivery, end: ConsumerEnd, effects: Effects[Any]) -> None:
        super().__init__(delivery, end, effects)
        self._log, self._hold, self._calls = effects.log, end.hold - self._lag, end.calls
        self._choice = NewestChoice(self._lag, self._calls)

    def recall(self, resume: int, decisions: Mapping[int, bytes]) -> None:
        """Take the values that former generations took: `decisions` has their encoded ages, by step."""
        again = {step: step - age_in(body) for step, body in decisions.items()}
        self._choice = NewestChoice(self._lag, self._calls, again)

    def take(self, step: int) -> Any:
        """The newest value that has come; waits for one that is not too old."""
        self._choose(step)
        made = self._choice.made
        if made in self._given:
            return deepcopy(self._given[made])
        return self._read(made, self.state.peek(made))

    def stream(self, step: int, how: Streaming = True) -> Iterator[Any]:
        """The newest value that has come, as one chunk."""
        yield self.take(step)

    def release_stream(self, step: int) -> None:
        """As `release`."""
        self.await_all(step)
        self.release(step)

    def _choose(self, step: int) -> None:
        choice = self._choice
        if step == choice.step:
            return
        if not choice.choose(step, self._there):
            self._wait_until(lambda: choice.choose(step, self._there))
        made = choice.made
        if self._log is not None:
            self._log.decide(self.scope, step, self._hold, encode_age(step - made))
        self.state.forget(made)
        self.state.use(made)
        self._given = {at: value for at, value in self._given.items() if at >= made}
        self._aged(step - made)

    def _there(self, made: int) -> bool:
        return made in self._given or self.state.ready(made)
