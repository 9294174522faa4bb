"""The use of time by roles and edges, from the accounts of their ranks. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh_recorder.lines import Account, FlowFile, Line

__all__ = ["EdgeUse", "Use", "by_role", "edge_uses", "overall", "reached_step", "use_of", "whole_steps"]

ENGINE = "engine"


class Use(NamedTuple):
    """µs by name, of `wall` µs in which `steps` steps ended. ``engine`` is the rest.

    `sent` has bytes by edge. `ends` has the values under way and the credits at the end, and `queued` the values that
    waited then, both by edge as in `Account`. `finished` is the last finished step at the end; -1 for none.
    `travelled` has the bytes of values and those that travelled, by edge as in `Account`.
    """

    spent: Mapping[str, float]
    wall: float
    steps: float
    sent: Mapping[int, float] = {}
    ends: Mapping[int, tuple[int, int]] = {}
    queued: Mapping[int, int] = {}
    finished: int = -1
    travelled: Mapping[int, tuple[float, float]] = {}

    def share(self, name: str) -> float:
        """Return the share of the time under `name`, from 0 to 1."""
        return self.spent.get(name, 0.0) / self.wall if self.wall else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """All shares, the largest first."""
        ordered = sorted(self.spent, key=lambda name: -self.spent[name])
        return {name: self.share(name) for name in ordered}


class EdgeUse(NamedTuple):
    """Shares of the time: consumers' ranks waited for values, and producers' ranks for consumers, on average."""

    edge: int
    producer: str
    consumer: str
    param: str
    waiting: float
    blocked: float


def use_of(lines: Iterable[Line], since: int = 0, until: int = 1 << 62) -> Use:
    """Return the use of a rank's time between two times. An account that lies partly within counts in proportion."""
    spent: dict[str, float] = {}
    sent: dict[int, float] = {}
    ends: dict[int, tuple[int, int]] = {}
    queued: dict[int, int] = {}
    travelled: dict[int, tuple[float, float]] = {}
    wall = steps = 0.0
    finished = -1
    for line in lines:
        if not isinstance(line, Account) or line.d <= 0:
            continue
        share = (min(until, line.t + line.d) - max(since, line.t)) / line.d
        if share <= 0:
            continue
        share = min(1.0, share)
        for name, us in line.spent.items():
            spent[name] = spent.get(name, 0.0) + us * share
        for edge, (nbytes, under_way, credits_) in line.sent.items():
            sent[edge] = sent.get(edge, 0.0) + nbytes * share
            ends[edge] = under_way, credits_
        for edge, (nbytes, left) in line.travelled.items():
            before = travelled.get(edge, (0.0, 0.0))
            travelled[edge] = before[0] + nbytes * share, before[1] + left * share
        queued.update(line.queued)
        wall += line.d * share
        steps += line.steps * share
        finished = line.step
    spent = {name: us for name, us in spent.items() if us > 0}  # a correction may lie apart from what it corrects
    rest = wall - sum(spent.values())
    if rest > 0:
        spent[ENGINE] = rest
    return Use(spent, wall, steps, sent, ends, queued, finished, travelled)


def whole_steps(ends: Sequence[int], begin: int, end: int, least: int) -> tuple[int, int]:
    """Return the begin and end of the last whole steps of a record from `begin` to `end`, `least` µs or more together.

    `ends` are the times at which steps, or lines of several steps, ended. A part of a step would show one operator
    only. Fewer steps do if there are no more, and the last `least` µs without a step. If the present step lasts longer
    than these steps together, it counts: it may be the one that hangs.
    """
    last = bisect_right(ends, end)
    first = bisect_left(ends, begin)
    if last - first < 2:
        return max(begin, end - least), end
    since = ends[max(first, bisect_right(ends, ends[last - 1] - least, first, last) - 1)]
    present = end - ends[last - 1] > max(least, ends[last - 1] - since)
    return since, end if present else ends[last - 1]


def reached_step(lines: Sequence[Line], until: int = 1 << 62) -> int:
    """Return the last step that a rank finished, by its last account that begins before `until`; -1 for none."""
    return next((line.step for line in reversed(lines) if isinstance(line, Account) and line.t < until), -1)


def overall(uses: Iterable[Use]) -> Use:
    """Return the use of several ranks together. `steps` is that of the rank with the most."""
    spent: dict[str, float] = {}
    wall = steps = 0.0
    for use in uses:
        for name, us in use.spent.items():
            spent[name] = spent.get(name, 0.0) + us
        wall, steps = wall + use.wall, max(steps, use.steps)
    return Use(spent, wall, steps)


def by_role(uses: Mapping[RankRef, Use]) -> dict[str, Use]:
    """Return the use of time of each role."""
    roles = dict.fromkeys(ref.role for ref in uses)
    return {role: overall(use for ref, use in uses.items() if ref.role == role) for role in roles}


def edge_uses(flow: FlowFile, uses: Mapping[RankRef, Use]) -> list[EdgeUse]:
    """Return the waits on each edge of the flow."""
    roles = by_role(uses)
    nothing = Use({}, 0.0, 0.0)
    found = []
    for edge in flow.edges:
        producer, consumer = flow.ops[edge.src].role, flow.ops[edge.dst].role
        waiting = roles.get(consumer, nothing).share(f"edge {edge.id}")
        blocked = roles.get(producer, nothing).share(f"edge {edge.id}") if producer != consumer else 0.0
        found.append(EdgeUse(edge.id, producer, consumer, edge.param, waiting, blocked))
    return found
