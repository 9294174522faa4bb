"""Which value a step takes from an edge with a bounded lag: the newest there is, and after a restart the same. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rolemesh.graph.schedule import Period

__all__ = ["NewestChoice"]

NEVER: Final = -(1 << 62)


class NewestChoice:
    """One consumer rank's choices, which never go back: `made` is when the value was made that `step` takes."""

    def __init__(self, lag: int, calls: Period, again: Mapping[int, int] | None = None) -> None:
        """`calls` are the steps that take one. `again`: by step, when the value was made that a former generation
        took."""
        self._lag, self._calls, self._again = lag, calls, again or {}
        self.step = self.made = NEVER

    @property
    def released(self) -> int:
        """What was made up to then is not taken any more: a newer one was, or it is too old for the next call."""
        return max(self.made, self._calls.next(self.step + 1) - self._lag) - 1

    def choose(self, step: int, there: Callable[[int], bool]) -> bool:
        """Whether there is a value for `step`; `there` says of each whether it has come."""
        made = self._again.get(step)
        newest, oldest = (step, step - self._lag) if made is None else (made, made)
        for made in range(newest, max(oldest, self.made) - 1, -1):
            if there(made):
                self.step, self.made = step, made
                return True
        return False
