"""The common part of `newest` and `first`: the lag is a bound, and each step chooses its values."""

from __future__ import annotations

from typing import Any, Protocol

from rolemesh.graph.schedule import Period
from rolemesh_durable.protocol.delivery.exact import InPort
from rolemesh_durable.protocol.delivery.policy import Delivery

__all__ = ["Choosing", "ChoosingPort"]


class Choosing(Delivery):
    """A step takes values that have come, at most `lag` steps old."""

    @property
    def soonest(self) -> int:
        """0, because a step may take a value of the same step."""
        return 0

    def releasing(self, step: int, period: Period) -> int:
        """As for an exact lag, but one step later: a value is released when a step takes a newer one."""
        return super().releasing(step + 1, period)

    @property
    def may_owe(self) -> bool:
        """False: a step's choice depends on time, so every snapshot is due."""
        return False


class _Choice(Protocol):
    @property
    def released(self) -> int:
        """The newest producer step of which no later step takes a value."""


class ChoosingPort(InPort):
    """One input of an operator call. The first caller that needs the choice of a step makes it, once."""

    _choice: _Choice

    def early(self, step: int) -> Any:
        """Return None: the step itself chooses its value."""

    def await_all(self, step: int) -> None:
        """Wait until `step` can choose."""
        self._choose(step)

    def release(self, step: int) -> None:
        """Release the values that no later step takes, because the operator has ended."""
        self._let_go(self._choice.released)

    def end(self, step: int) -> None:
        """Release all values up to `step`, the last one, even those that have not come."""
        self._let_go(step)

    def _choose(self, step: int) -> None:
        """Wait for the values of `step`, unless the port has chosen them."""
        raise NotImplementedError

    def _let_go(self, made: int) -> None:
        if made > self._released:
            self.state.forget(made + 1)
            self._released = made
            self._owe()
