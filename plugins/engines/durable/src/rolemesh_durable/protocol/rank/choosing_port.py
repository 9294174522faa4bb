"""The consumer's end of an edge where each step chooses what it takes, and lets go of what it no longer needs."""

from __future__ import annotations

from typing import Protocol

from rolemesh_durable.protocol.rank.in_port import InPort

__all__ = ["ChoosingPort"]


class _Choice(Protocol):
    @property
    def released(self) -> int:
        """No later step takes what was made up to then."""


class ChoosingPort(InPort):
    """One input of an operator call. What a step takes is chosen once, by whoever asks for it first."""

    _choice: _Choice

    def await_all(self, step: int) -> None:
        """Wait until `step` can choose."""
        self._choose(step)

    def release(self, step: int) -> None:
        """The operator has ended: what no later step takes goes back."""
        self._let_go(self._choice.released)

    def end(self, step: int) -> None:
        """`step` was the last one: all that was made by then goes back, come or not."""
        self._let_go(step)

    def _choose(self, step: int) -> None:
        """Wait for what `step` takes, unless it has been chosen."""
        raise NotImplementedError

    def _let_go(self, made: int) -> None:
        if made > self._released:
            self.state.forget(made + 1)
            self._released = made
            self._owe()
