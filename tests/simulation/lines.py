"""The shipped `Meter` of a simulated rank, whose log is the node's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from tests.simulation.memory import Lines, Part

from rolemesh import RankContext
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.rank.begun_lines import begun_line
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.port import EnginePort
from rolemesh_runtime.metrics import Metrics

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["former_lines", "meter_of", "started_again", "stored_line"]

_decode = msgspec.msgpack.Decoder(Metrics).decode


class _LineLog:
    """The lines of a rank in the memory of its node."""

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank

    def line(self, step: int, encoded: bytes, *, partial: bool = False) -> None:
        lines: Lines = self._rank.agent.memory.lines.setdefault(self._rank.key, {})
        lines[step, partial] = encoded


def meter_of(rank: SimRank) -> tuple[Meter, RankContext]:
    """The meter of a rank, and the context that it takes reports from."""
    role, number = rank.key
    ctx = RankContext(role=role, rank=number, generation=rank.generation, port=EnginePort())
    return Meter(ctx, (), rank.report, _LineLog(rank)), ctx


def former_lines(rank: SimRank) -> list[Metrics]:
    """Return the lines of a rank's former generations."""
    lines = rank.agent.memory.lines.get(rank.key, {})
    return [_decode(line) for (_, begun), line in sorted(lines.items()) if not begun]


def stored_line(rank: SimRank, there: Mapping[RankRef, Part]) -> None:
    """Take the line that the ranks of a persisted snapshot had begun, as far as it is this rank's."""
    role, number = rank.key

    def read(former: int) -> Metrics | None:
        line = there[RankRef(role, former)][2]
        return _decode(line) if line is not None else None

    before = sum(ref[0] == role for ref in there)
    if (begun := begun_line(read, number, before, rank.shape.sizes[role])) is not None:
        rank.agent.memory.lines[rank.key] = {(rank.launch.resume, True): msgspec.msgpack.encode(begun)}


def started_again(rank: SimRank) -> None:
    """Go on with the line that a former generation had begun."""
    if begun := rank.agent.memory.lines.get(rank.key, {}).get((rank.launch.resume, True)):
        rank.meter.resume(_decode(begun))
