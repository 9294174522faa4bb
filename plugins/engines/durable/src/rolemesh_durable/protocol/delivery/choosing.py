"""What `newest` and `first` have in common: the lag is a bound, and each step chooses what it takes."""

from __future__ import annotations

from typing import Protocol

from rolemesh.graph.schedule import Period
from rolemesh_durable.protocol.delivery.exact import InPort
from rolemesh_durable.protocol.delivery.policy import Delivery

__all__ = ["Choosing", "ChoosingPort"]


class Choosing(Delivery):
    """A step takes what has come, at most `lag` steps old."""

    @property
    def soonest(self) -> int:
        """A step may take what was made in the same step."""
        return 0

    def releasing(self, step: int, period: Period) -> int:
        """As for an exact lag, but one step later: a value is released when a step takes a newer one."""
        return super().releasing(step + 1, period)

    @property
    def may_owe(self) -> bool:
        """What a step takes depends on time, so every snapshot is due."""
        return False


class _Choice(Protocol):
    @property
    def released(self) -> int:
        """No later step takes what was made up to this step."""


class ChoosingPort(InPort):
    """One input of an operator call. The first caller that needs the choice of a step makes it, once."""

    _choice: _Choice

    def await_all(self, step: int) -> None:
        """Wait until `step` can choose."""
        self._choose(step)

    def release(self, step: int) -> None:
        """The operator has ended: release what no later step takes."""
        self._let_go(self._choice.released)

    def end(self, step: int) -> None:
        """`step` was the last one: release all that was made by then, even what has not come."""
        self._let_go(step)

    def _choose(self, step: int) -> None:
        """Wait for what `step` takes, unless the port has chosen it."""
        raise NotImplementedError

    def _let_go(self, made: int) -> None:
        if made > self._released:
            self.state.forget(made + 1)
            self._released = made
            self._owe()
