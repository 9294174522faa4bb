"""The rank that ended another rank's wait, and when. Pure.

Pieces shorter than a millisecond are missing, and so are operators that are that short. Their time follows from the
pieces around them, because a rank runs its operators step by step in the order of the flow.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.pieces import Piece
from rolemesh_recorder.lines import FlowEdge, FlowFile

__all__ = ["CLOSE_US", "WAITS", "WORK", "Causes", "Lane"]

WORK = ("computing", "serving")
"""Phases in which a rank runs an operator."""
WAITS = ("waiting", "blocked", "idle", "following", "gathering", "turn")
"""Phases in which a rank waits for another one, and may serve calls meanwhile."""
CLOSE_US = 2_000
"""Duration of a gap between two pieces, in µs, that counts as none."""
FARTHEST_US = 50_000_000
"""How long before a wait, in µs, a call may end that is still looked at."""

Cause = tuple[RankRef, int]
"""A rank, and the time in µs since 1970 at which it had done what the wait was for."""


class Lane:
    """The pieces of a rank without overlap, by time."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.begins = [piece.t for piece in pieces]

    def before(self, time: int) -> Piece | None:
        """Return the last piece that begins before `time`."""
        return next(self.back(time), None)

    def back(self, time: int) -> Iterator[Piece]:
        """Yield the pieces that begin before `time`, the last one first."""
        for at in range(bisect_right(self.begins, time - 1) - 1, -1, -1):
            yield self.pieces[at]


class Causes:
    """Finds who ended the waits of a run's ranks."""

    def __init__(self, flow: FlowFile, lanes: Mapping[RankRef, Lane], full: Mapping[RankRef, Lane]) -> None:
        """`lanes` lack the calls that ranks answer while they wait, `full` ones have them."""
        self._flow = flow
        self._lanes, self._full = lanes, full
        self._of_role: dict[str, list[RankRef]] = {}
        for ref in lanes:
            self._of_role.setdefault(ref.role, []).append(ref)

    def of(self, ref: RankRef, wait: Piece, time: int) -> Cause | None:
        """Return who ended the piece `wait` of `ref` at `time`, and when; None if the piece is no wait for a rank, or
        the rank had done its part before the wait began."""
        match wait.phase:
            case "waiting" | "blocked" if 0 <= wait.edge < len(self._flow.edges):
                edge = self._flow.edges[wait.edge]
                return self._maker(edge, wait, time) if wait.phase == "waiting" else self._taker(edge, wait, time)
            case "calling":
                return self._callee(wait, time)
            case "following":
                return self._caller(ref.role, wait, time)
            case "gathering":
                return self._last_of_group(ref, wait, time)
            case "turn":
                return self._before_turn(ref, wait, time)
            case "idle":  # the master grants further steps once all ranks have finished earlier ones
                return self._behind(self._of_role, wait, time)
        return None

    def _maker(self, edge: FlowEdge, wait: Piece, time: int) -> Cause | None:
        """Return the producer that made the value last. With a lag it is the oldest value that the consumer may use."""
        role, lag = self._flow.ops[edge.src].role, re.search(r"\d+", edge.lag)
        if lag is None:
            return self._latest(role, edge.src, wait, time)
        step = wait.step - int(lag[0])
        return _last((ref, self._made(ref, (step, edge.src), wait, time)) for ref in self._of_role.get(role, ()))

    def _made(self, ref: RankRef, call: tuple[int, int], wait: Piece, time: int) -> int | None:
        """Return when `ref` made the value of `call`, a step and an operator; None if it was not within the wait."""
        made = time
        for piece in self._lanes[ref].back(time):
            at = piece.step, piece.op
            if at == call and piece.phase == "computing":
                made = min(piece.end, time)
                break
            if piece.op >= 0 and at > call:
                made = piece.t
            elif piece.op >= 0 or piece.end <= wait.t:
                break
            if made <= wait.t:
                break
        return made if made > wait.t else None

    def _taker(self, edge: FlowEdge, wait: Piece, time: int) -> Cause | None:
        """Return the consumer that took a value last; if its operator is too short for a piece, the one that is behind
        all others."""
        role = self._flow.ops[edge.dst].role
        return self._latest(role, edge.dst, wait, time) or self._behind([role], wait, time)

    def _behind(self, roles: Iterable[str], wait: Piece, time: int) -> Cause | None:
        """Return the rank that is behind all others of these roles at `time`."""
        behind: list[tuple[int, int, RankRef]] = []
        for ref in (ref for role in roles for ref in self._of_role.get(role, ())):
            piece = next((piece for piece in self._lanes[ref].back(time) if piece.op >= 0), None)
            if piece is not None and piece.end > wait.t:
                behind.append((piece.step, piece.op, ref))
        return (min(behind)[2], time) if behind else None

    def _callee(self, wait: Piece, time: int) -> Cause | None:
        role, rank = self._called_role(wait), (-2 - wait.edge) % (1 << 20) - 1
        if role is None:
            return None
        refs = [ref for ref in self._of_role.get(role, ()) if rank in (-1, ref.rank)]
        return self._latest(role, None, wait, time, rank) or _last((ref, self._ran(ref, wait, time)) for ref in refs)

    def _ran(self, ref: RankRef, wait: Piece, time: int) -> int | None:
        """Return until when an operator of `ref` ran during the wait: a service may wait for it."""
        piece = self._full[ref].before(time)
        runs = piece is not None and piece.phase in ("computing", "calling") and piece.end > wait.t
        return min(piece.end, time) if piece is not None and runs else None

    def of_call(self, callee: RankRef, time: int) -> Cause | None:
        """Return who let `callee` begin to answer calls at `time`, and when: the caller, or what `callee` waited for.

        None if the record does not have it. The calls that came before `callee` was done with a wait waited for that.
        """
        callers = {caller for caller, called in self._flow.callers if called == callee.role}
        refs = (ref for caller in sorted(callers) for ref in self._of_role.get(caller, ()))
        found, own = (
            _last((ref, self._calls_at(ref, time)) for ref in refs),
            self._lanes[callee].before(time - CLOSE_US),
        )
        if found is None:
            return None
        if own is not None and own.phase in WAITS[:3] and found[1] + CLOSE_US < own.end < time + CLOSE_US:
            return callee, min(own.end, time)
        return found[0], time

    def _calls_at(self, ref: RankRef, time: int) -> int | None:
        """Return when `ref` began to wait for calls of its step, if it does at `time`; None if it does not."""
        began, step = time, None
        for piece in self._lanes[ref].back(time + CLOSE_US):
            if piece.end < began - CLOSE_US or step not in (None, piece.step):
                break
            if piece.phase == "calling":
                began, step = piece.t, piece.step
        return began if step is not None else None

    def _called_role(self, call: Piece) -> str | None:
        """Return the role that the rank calls in a piece of `calling`; None if the record is damaged."""
        pair = (-2 - call.edge) >> 20
        return self._flow.callers[pair][1] if 0 <= pair < len(self._flow.callers) else None

    def _caller(self, role: str, wait: Piece, time: int) -> Cause | None:
        """Return the caller of a service of `role` whose call began last; without a call, the one that is behind."""
        callers = sorted({caller for caller, callee in self._flow.callers if callee == role})
        refs = [ref for each in callers for ref in self._of_role.get(each, ())]
        begun = _last((ref, self._called(ref, role, wait, time)) for ref in refs)
        return begun or self._behind(callers, wait, time)

    def _called(self, ref: RankRef, role: str, wait: Piece, time: int) -> int | None:
        for piece in self._lanes[ref].back(time):
            if piece.t <= wait.t:
                break
            if piece.phase == "calling" and self._called_role(piece) == role:
                return piece.t
        return None

    def _last_of_group(self, ref: RankRef, wait: Piece, time: int) -> Cause | None:
        """Return the rank of the role that came last to the call."""
        return _last((each, self._arrived(each, wait, time)) for each in self._of_role[ref.role] if each != ref)

    def _arrived(self, ref: RankRef, wait: Piece, time: int) -> int | None:
        arrived = None
        for piece in self._lanes[ref].back(time):
            if piece.phase not in ("gathering", "computing") or (piece.step, piece.op) != (wait.step, wait.op):
                arrived = min(piece.end, time) if arrived is None else arrived
                break
            arrived = piece.t
        return arrived if arrived is not None and arrived > wait.t else None

    def _before_turn(self, ref: RankRef, wait: Piece, time: int) -> Cause | None:
        """Return the rank of another role whose turn ended last."""
        roles = {role for roles in self._flow.turns if ref.role in roles for role in roles} - {ref.role}
        refs = (each for role in roles for each in self._of_role.get(role, ()))
        return _last((each, self._left(each, wait, time)) for each in refs)

    def _left(self, ref: RankRef, wait: Piece, time: int) -> int | None:
        for piece in self._lanes[ref].back(time):
            if piece.end <= wait.t:
                break
            if piece.end <= time and piece.phase in ("computing", "turn", "loading"):
                return piece.end
        return None

    def _latest(self, role: str, op: int | None, wait: Piece, time: int, rank: int = -1) -> Cause | None:
        """Return the rank of `role` whose call of `op`, or of a service for None, ended last during the wait."""
        refs = [ref for ref in self._of_role.get(role, ()) if rank in (-1, ref.rank)]
        return _last((ref, self._ended(ref, op, wait, time)) for ref in refs)

    def _ended(self, ref: RankRef, op: int | None, wait: Piece, time: int) -> int | None:
        for piece in (self._full if op is None else self._lanes)[ref].back(time):
            if piece.end <= wait.t - FARTHEST_US:
                break
            if piece.phase == "serving" if op is None else piece.phase == "computing" and piece.op == op:
                return min(piece.end, time) if piece.end > wait.t else None
        return None


def _last(found: Iterator[tuple[RankRef, int | None]]) -> Cause | None:
    """Return the latest of the times that are known."""
    known = [(time, ref) for ref, time in found if time is not None]
    if not known:
        return None
    time, ref = max(known)
    return ref, time
