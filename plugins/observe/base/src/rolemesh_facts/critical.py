"""The critical path of recent steps: what the job would have to do faster to be faster. Pure.

The path begins at the slowest rank's last operator, and goes back in time. Before an operator's begin it stays with the
rank, unless the rank waited for another one (`causes.py`). Then it goes to that rank, at the time at which that rank
had done its part. The time between lies on the edge, the call or the turn. (See the critical path of a PERT network;
Böhme et al. 2012, "Identifying root causes of wait states", does the same for MPI.)

A rank answers calls while it waits. So a path that comes from a call passes the time in which the rank served, and goes
on to the caller where that began. A path that comes from the rank's own operator goes on to what the operator waited
for, whatever the rank served meanwhile.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.causes import CLOSE_US, WAITS, WORK, Causes, Lane
from rolemesh_facts.pieces import Piece, flat, without_served
from rolemesh_recorder.lines import FlowEdge, FlowFile

__all__ = ["Critical", "Hop", "Station", "critical_path"]

MOST_HOPS = 20_000
_NEVER = 1 << 62
"""The step of an operator that does not run at each step: it lags behind without harm."""


class Station(NamedTuple):
    """A part of the path, with its share from 0 to 1.

    `kind` is operator, edge, call, turn, group, memory, grant, snapshot, start or engine. `role` is "" for an edge.
    """

    kind: str
    name: str
    share: float
    role: str = ""
    edge: int = -1
    op: int = -1


class Hop(NamedTuple):
    """The path was with `ref` from `t` to `end`, in µs since 1970."""

    ref: RankRef
    t: int
    end: int
    station: tuple[str, str, int, int]


class Critical(NamedTuple):
    """The stations of a path, the largest share first, and the path from its end to its beginning.

    `since` is not before the first operator: what precedes it is the start of the job, which no step waits for again.
    `until` is the end of the last operator on the path.
    """

    stations: tuple[Station, ...]
    hops: tuple[Hop, ...]
    since: int
    until: int


def critical_path(
    flow: FlowFile,
    lanes: Mapping[RankRef, Sequence[Piece]],
    since: int,
    until: int,
    reached: Mapping[RankRef, int] | None = None,
) -> Critical:
    """Return the critical path between two times, from pieces as those of `stretches`.

    `reached` has the last finished step of ranks, from their accounts: a short operator has no piece.
    """
    begins = [piece.t for pieces in lanes.values() for piece in pieces if piece.phase in WORK and piece.end > since]
    since = max(since, min(begins, default=since))
    walk = _Walk(flow, {ref: pieces for ref, pieces in lanes.items() if pieces}, since, until, reached or {})
    hops = walk.run()
    totals: dict[tuple[str, str, int, int], int] = {}
    for hop in hops:
        totals[hop.station] = totals.get(hop.station, 0) + hop.end - hop.t
    whole = sum(totals.values())
    stations = [
        Station(kind, name, us / whole, re.split("[:. ]", name)[0] if kind != "edge" else "", edge, op)
        for (kind, name, edge, op), us in sorted(totals.items(), key=lambda each: -each[1])
        if whole
    ]
    return Critical(tuple(stations), tuple(hops), since, hops[0].end if hops else until)


class _Walk:
    def __init__(
        self,
        flow: FlowFile,
        lanes: Mapping[RankRef, Sequence[Piece]],
        since: int,
        until: int,
        reached: Mapping[RankRef, int],
    ) -> None:
        self._flow, self._since, self._until, self._reached = flow, since, until, reached
        self._full = {ref: Lane(flat(pieces)) for ref, pieces in lanes.items()}
        self._lanes = {ref: Lane(flat(without_served(pieces, WAITS))) for ref, pieces in lanes.items()}
        self._causes = Causes(flow, self._lanes, self._full)
        self._hops: list[Hop] = []

    def run(self) -> list[Hop]:
        start = self._start()
        if start is None:
            return []
        ref, time = start
        called = False
        while time > self._since and len(self._hops) < MOST_HOPS:
            piece = (self._full if called else self._lanes)[ref].before(time)
            if piece is None:
                break
            if piece.end < time - CLOSE_US:
                self._hop(ref, piece.end, time, self._gap(ref, piece, time))
            time = min(time, piece.end)
            ref, time, called = self._back(ref, piece, time, called)
        return self._hops

    def _gap(self, ref: RankRef, piece: Piece, time: int) -> tuple[str, str, int, int]:
        """The station of the time between `piece` and the next one: the rank's process ran, or was to be restarted."""
        lane = self._lanes[ref]
        following = lane.pieces[bisect_right(lane.begins, piece.t) :][:1]
        if following and following[0].generation > piece.generation:
            return "start", f"{ref.role}: no process before its restart", -1, -1
        return "engine", f"{ref.role}: between two phases", -1, -1

    def _start(self) -> tuple[RankRef, int] | None:
        """The rank that holds the job back: the one whose last operator has the lowest step, or else ended last.

        With room on its edges a fast producer ends many operators for later steps, and waits for nobody meanwhile.
        """
        ended: list[tuple[int, int, RankRef]] = []
        for ref, lane in self._full.items():
            works = [p for p in lane.pieces if p.phase in WORK and self._since < p.end]
            works = [piece for piece in works if piece.t < self._until]
            own = next((piece for piece in reversed(works) if self._each_step(piece)), None)
            if works:
                step = max(own.step, self._reached.get(ref, -1)) if own else _NEVER
                ended.append((-step, min((own or works[-1]).end, self._until), ref))
        if not ended:
            return None
        _, end, ref = max(ended)
        return ref, end

    def _each_step(self, piece: Piece) -> bool:
        """Return whether the piece is of an operator that runs at each step."""
        ops = self._flow.ops
        return piece.phase == "computing" and 0 <= piece.op < len(ops) and ops[piece.op].every == 1

    def _back(self, ref: RankRef, piece: Piece, time: int, called: bool) -> tuple[RankRef, int, bool]:
        """Add the hop of `piece` up to `time`; return where the path was before, and whether it came from a call."""
        if called and piece.phase == "serving":
            self._hop(ref, piece.t, time, self._station(ref, piece))
            before, cause = self._full[ref].before(piece.t), None
            if before is None or before.phase in WAITS or before.end < piece.t - CLOSE_US:
                cause = self._causes.of_call(ref, piece.t)
            other, at = cause or (ref, piece.t)
            self._hop(ref, at, piece.t, self._gap(ref, piece, at))
            return other, at, other == ref
        cause = self._causes.of(ref, piece, time)
        if cause is None:
            self._hop(ref, piece.t, time, self._station(ref, piece))
            return ref, piece.t, called
        other, ended = cause
        self._wait(ref, max(ended, piece.t), time, self._station(ref, piece, other))
        return other, min(ended, time - 1), piece.phase == "calling"

    def _wait(self, ref: RankRef, began: int, ended: int, station: tuple[str, str, int, int]) -> None:
        """Add the hops of a wait, and of the calls within it that kept the rank from its own operator."""
        for piece in self._full[ref].back(ended):
            if piece.end <= began:
                break
            if piece.phase == "serving":
                self._hop(ref, piece.end, ended, station)
                self._hop(ref, max(began, piece.t), min(ended, piece.end), self._station(ref, piece))
                ended = piece.t
        self._hop(ref, began, ended, station)

    def _station(self, ref: RankRef, piece: Piece, other: RankRef | None = None) -> tuple[str, str, int, int]:
        match piece.phase:
            case "calling" if other is not None:
                return "call", f"{ref.role} calls {other.role}", -1, -1
            case "computing":
                label = self._flow.ops[piece.op].label if 0 <= piece.op < len(self._flow.ops) else ref.role
                return "operator", label, -1, piece.op
            case "serving":
                return "operator", f"{ref.role}: serving calls", -1, -1
            case "calling" | "following":
                return "call", f"{ref.role}: waits for {'an answer' if piece.phase == 'calling' else 'callers'}", -1, -1
            case "waiting" | "blocked" if 0 <= piece.edge < len(self._flow.edges):
                return "edge", self._name(self._flow.edges[piece.edge]), piece.edge, -1
            case "blocked":
                return "memory", f"{ref.role}: waits for memory", -1, -1
            case "turn" if other is not None:
                return "turn", f"{ref.role}: waits for the turn of {other.role}", -1, -1
            case "turn" | "loading":  # older records have loads as turns
                return "turn", f"{ref.role}: loads, or makes room", -1, -1
            case "gathering":
                return "group", f"{ref.role}: waits for its group", -1, -1
            case "idle":
                return "grant", f"{ref.role}: waits for the master", -1, -1
            case "saving":
                return "snapshot", f"{ref.role}: snapshot", -1, -1
            case "starting" | "setup" | "restoring":
                return "start", f"{ref.role}: {piece.phase}", -1, -1
            case _:
                return piece.phase, f"{ref.role}: {piece.phase}", -1, -1

    def _name(self, edge: FlowEdge) -> str:
        ops = self._flow.ops
        return f"{ops[edge.src].label} → {ops[edge.dst].label} ({edge.param})"

    def _hop(self, ref: RankRef, began: int, ended: int, station: tuple[str, str, int, int]) -> None:
        began = max(began, self._since)
        if ended > began:
            self._hops.append(Hop(ref, began, ended, station))
