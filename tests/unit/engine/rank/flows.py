"""The flow that the tests of restarts and of resuming share, and who plays its roles."""

from __future__ import annotations

from typing import Any

from rolemesh.api.partition import Broadcast, Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall

STATEFUL = ("data", "trainer")


def flow(
    *, lag: int = 1, every: int = 1, streaming: bool = False, credits: int = 2, samples_lag: int = 0
) -> LogicalGraph:
    """data → rollout → trainer (with `samples_lag`), and every `every` steps the weights back to the rollout."""
    ops = (
        OpCall(0, "data", "chunks" if streaming else "next", "data.next", Split()),
        OpCall(1, "rollout", "generate", "rollout.generate", Split()),
        OpCall(2, "trainer", "train", "trainer.train", None, streaming=streaming),
        OpCall(3, "trainer", "weights", "trainer.weights", Broadcast(), every=every),
        OpCall(4, "rollout", "load", "rollout.load", None, every=every, at=lag % every),
    )
    edges = (
        Edge(0, 0, 1, "x", Split(), Split(), credits=credits),
        Edge(1, 1, 2, "x", Split(), Split(), lag=samples_lag, credits=credits),
        Edge(2, 3, 4, "weights", Broadcast(), Broadcast(), lag=lag, credits=credits),
    )
    return LogicalGraph("restarts", ops, edges)


def classes(*, pause: float = 0.002, size: int = 4, rollout: str = "Rollout") -> dict[str, tuple[str, dict[str, Any]]]:
    """Role → its class in ``roles.py``, and the arguments of the class."""
    return {
        "data": ("Source", {"pause": pause, "size": size}),
        "rollout": (rollout, {"pause": pause}),
        "trainer": ("Trainer", {"pause": pause, "size": size}),
    }
