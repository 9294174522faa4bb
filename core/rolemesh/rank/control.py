"""What a rank's agent has told it: addresses, grants, commits, and to stop."""

from __future__ import annotations

from collections.abc import Callable

from rolemesh.protocol.messages import AgentToRank, Commit, Grant, Stop, WireRank

__all__ = ["Control", "Stopping"]


class Stopping(BaseException):
    """Raised wherever a rank waits once its agent has asked it to stop; no ``except Exception`` swallows it."""


class Control:
    """Takes the agent's messages in order; pass it to `Endpoint` as `on_control`."""

    def __init__(self) -> None:
        self.granted = -1
        """The last step that may run."""
        self.committed = -1
        """The last step that every rank has finished."""
        self.stopping: Stop | None = None
        self.wire: WireRank | None = None
        self.on_commit: Callable[[int], None] | None = None

    def __call__(self, message: AgentToRank) -> None:
        """Take note of `message`."""
        match message:
            case Grant(until=until):
                self.granted = max(self.granted, until)
            case Commit(step=step):
                self.committed = max(self.committed, step)
                if self.on_commit is not None:
                    self.on_commit(self.committed)
            case Stop():
                self.stopping = message
            case WireRank():
                self.wire = message
