"""The sequence of calls of a task: it says whose calls they are, and numbers them."""

from __future__ import annotations

from contextvars import ContextVar

from rolemesh.graph.logical import OpCall

__all__ = ["CallSequence"]


class CallSequence:
    """The sequence of calls that one task of an operator makes.

    Each task numbers its own calls, so they have the same numbers in each life of the rank, whichever task gets its
    answers first. `path` names the task: the numbers of its parents, then its own.
    """

    __slots__ = ("_count", "op", "path", "step")

    def __init__(self, op: OpCall, step: int, path: str = "") -> None:
        self.op, self.step, self.path, self._count = op, step, path, 0

    def next(self) -> str:
        """Return the path of the task's next call or child."""
        self._count += 1
        return f"{self.path}.{self._count - 1}"

    @staticmethod
    def present() -> CallSequence | None:
        """Return the line of the task that runs; None if the task is not an operator's."""
        return _LINE.get(None)

    def enter(self) -> None:
        """Make this the line of the task that runs."""
        _LINE.set(self)


_LINE: ContextVar[CallSequence] = ContextVar("line")
