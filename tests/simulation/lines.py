"""The shipped `Meter` of a simulated rank, whose log is the node's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.memory import Lines

from rolemesh import RankContext
from rolemesh.api.plugin import NoOptions
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.port import EnginePort
from rolemesh_runtime.metrics import Metrics

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["former_lines", "meter_of", "started_again"]

_decode = msgspec.msgpack.Decoder(Metrics).decode


class _LineLog:
    """The lines of a rank in the memory of its node."""

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank

    def line(self, step: int, encoded: bytes, *, partial: bool = False) -> None:
        lines: Lines = self._rank.agent.memory.lines.setdefault(self._rank.key, {})
        lines[step, partial] = encoded


def meter_of(rank: SimRank) -> tuple[Meter, RankContext[Any]]:
    """The meter of a rank, and the context that it takes reports from."""
    role, number = rank.key
    ctx = RankContext(options=NoOptions(), role=role, rank=number, generation=rank.generation, port=EnginePort())
    return Meter(ctx, (), rank.report, _LineLog(rank)), ctx


def former_lines(rank: SimRank) -> list[Metrics]:
    """Return the lines of a rank's former generations."""
    lines = rank.agent.memory.lines.get(rank.key, {})
    return [_decode(line) for (_, begun), line in sorted(lines.items()) if not begun]


def started_again(rank: SimRank) -> None:
    """Go on with the line that a former generation had begun."""
    if begun := rank.agent.memory.lines.get(rank.key, {}).get((rank.launch.resume, True)):
        rank.meter.resume(_decode(begun))
