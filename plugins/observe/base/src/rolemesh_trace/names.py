"""The names of slices and counters. Pure."""

from __future__ import annotations

from functools import cache
from typing import Final

from rolemesh_recorder.lines import FlowFile

__all__ = ["Names"]

_PHASES: Final = {
    "idle": "waits for other ranks or the master",
    "turn": "waits for its turn",
    "loading": "loads, or makes room",
    "gathering": "waits for its group",
    "serving": "serves a call",
    "following": "waits for its callers",
    "saving": "snapshot",
}


class Names:
    """Names of the things of one flow."""

    def __init__(self, flow: FlowFile) -> None:
        self._labels = {op.id: op.label for op in flow.ops}
        self._roles = {op.id: op.role for op in flow.ops}
        self._edges = {edge.id: edge for edge in flow.edges}
        self._callers = flow.callers
        self.span = cache(self._span)

    def edge(self, number: int) -> str:
        """Return the name of an edge: producer → consumer (parameter)."""
        if (edge := self._edges.get(number)) is None:
            return f"edge {number}"
        return f"{self._label(edge.src)} → {self._label(edge.dst)} ({edge.param})"

    def _span(self, phase: str, op: int, number: int) -> str:
        """Return the name of a span."""
        edge = self._edges.get(number)
        match phase:
            case "computing" if op >= 0:
                return self._label(op)
            case "waiting" if edge is not None:
                return f"waits for {edge.param} from {self._roles.get(edge.src, '?')}"
            case "blocked" if edge is not None:
                return f"waits until {self._label(edge.dst)} takes {edge.param}"
            case "waiting" | "blocked":
                return "waits for memory"
            case "calling":
                return f"calls {self._called(number)}"
        return _PHASES.get(phase, phase)

    def _label(self, op: int) -> str:
        return self._labels.get(op, f"operator {op}")

    def _called(self, number: int) -> str:
        pair, rank = divmod(-2 - number, 1 << 20)
        if not 0 <= pair < len(self._callers):
            return "a service"
        role = self._callers[pair][1]
        return f"{role}/{rank - 1}" if rank else role
