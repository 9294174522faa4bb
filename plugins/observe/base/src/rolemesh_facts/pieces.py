"""A rank's record as pieces of time without overlap: an inner stretch takes its time from the outer one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rolemesh_recorder.lines import Head, Life, Line, Stretch

__all__ = ["Piece", "flat", "stretches", "without_served"]


class Piece(NamedTuple):
    """`phase` from `t` to `end`, in µs since 1970. `op`, `edge` and `step` as in `Stretch`; -1 for none."""

    t: int
    end: int
    phase: str
    op: int = -1
    edge: int = -1
    step: int = -1
    generation: int = 0


def stretches(lines: Iterable[Line], since: int = 0, until: int = 1 << 62) -> list[Piece]:
    """Return the stretches and lives that overlap `since` to `until`, by their begin, the longer one first."""
    found, generation = [], 0
    for line in lines:
        if isinstance(line, Head):
            generation = line.generation
        elif isinstance(line, Stretch | Life) and line.t + line.d > since and line.t < until:
            if isinstance(line, Life):
                found.append(Piece(line.t, line.t + line.d, line.what, generation=generation))
            else:
                ends = line.t + line.d
                found.append(Piece(line.t, ends, line.phase, line.op, line.edge, line.step, generation))
    return sorted(found, key=lambda piece: (piece.t, -piece.end))


def flat(nested: Sequence[Piece]) -> list[Piece]:
    """Return pieces without overlap from those of `stretches`: the innermost one counts at each time."""
    result: list[Piece] = []
    open_: list[Piece] = []
    at = 0

    def upto(time: int) -> None:
        nonlocal at
        while open_ and open_[-1].end <= time:
            top = open_.pop()
            if top.end > at:
                result.append(top if top.t >= at else top._replace(t=at))
                at = top.end
        if open_ and time > at:
            result.append(open_[-1]._replace(t=max(at, open_[-1].t), end=time))
            at = time

    for piece in nested:
        if open_ and (len(open_) > 1 or open_[0].end > piece.t or open_[0].t < at):
            upto(piece.t)
        elif open_ and (top := open_.pop()).end > at:  # one after the other, as nearly all are
            result.append(top)
            at = top.end
        at = max(at, piece.t)
        open_.append(piece)
    upto(1 << 62)
    return result


def without_served(nested: Sequence[Piece], waits: Collection[str]) -> list[Piece]:
    """Return the pieces of `stretches` without the calls that a rank has answered in phases of `waits`."""
    result: list[Piece] = []
    open_: list[Piece] = []
    for piece in nested:
        while open_ and open_[-1].end <= piece.t:
            open_.pop()
        if piece.phase == "serving":
            if open_ and open_[-1].phase in waits:
                continue
        else:
            open_.append(piece)
        result.append(piece)
    return result
