"""The consumer's end of an edge with a bounded lag: each step takes the newest value there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from rolemesh.api.partition import Streaming
from rolemesh.graph.schedule import Period
from rolemesh_durable.protocol.newest import NewestChoice
from rolemesh_durable.protocol.rank.choosing_port import ChoosingPort
from rolemesh_durable.protocol.rank.effects import Log

__all__ = ["NewestPort"]


class NewestPort(ChoosingPort):
    """One input of an operator call. Which value it took is logged before the call, so that a restart takes the same.

    A value may be taken by several steps; it is released when a newer one is taken, and never is an older one.
    """

    _log: Log[Any] | None = None
    _hold = 0
    _choice: NewestChoice

    def remember(self, log: Log[Any] | None, hold: int, calls: Period) -> None:
        """Log what `calls` take; a restart may need that of a step until ``step + hold`` is committed."""
        self._log, self._hold, self._calls = log, hold, calls
        self.choose_again({})

    def choose_again(self, ages: Mapping[int, int]) -> None:
        """By step, how old the value was that a former generation took."""
        self._choice = NewestChoice(self._lag, self._calls, {step: step - age for step, age in ages.items()})

    def take(self, step: int) -> Any:
        """The newest value that is there; waits for one that is not too old."""
        self._choose(step)
        made = self._choice.made
        if made in self._given:
            return deepcopy(self._given[made])
        return self._read(made, self.state.peek(made))

    def stream(self, step: int, how: Streaming = True) -> Iterator[Any]:
        """The chunks of the newest value that is there as a whole."""
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
            self._log.choice(self.edge.id, step, step - made, self._hold)
        self.state.forget(made)
        self.state.use(made)
        self._given = {at: value for at, value in self._given.items() if at >= made}
        self._aged(step - made)

    def _there(self, made: int) -> bool:
        return made in self._given or self.state.ready(made)
