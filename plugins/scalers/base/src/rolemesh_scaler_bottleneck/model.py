"""Predict the duration of a step with other numbers of ranks, and find the bottleneck, from one measurement of the
load.

Times are shares of the present duration of a step. If the ranks of a role compute for the share `busy` of the time,
they do ``busy * ranks`` of work per step, whatever they wait for (the utilization law, Denning & Buzen 1978, "The
operational analysis of queueing network models", section 4). Divided among n ranks, that takes ``busy * ranks / n``. A
step takes as long as the slowest of the job's cycles. A cycle is a role by itself, which does one step after the other,
or a loop of roles that depend on each other; the lags in a loop allow as many concurrent steps as it has tokens
(Baccelli et al. 1992, "Synchronization and linearity", section 2.5).

A role that receives and sends in turn is in loops without a lag. Such a loop has one token, because the next step's
calls come after this one's. In the time of a step, the roles of a loop cannot do more than its tokens allow. If they
do, some of the work is outside the loop, and the loop counts as having that many tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import ceil
from typing import NamedTuple

from rolemesh_durable.scalers import EdgeLoad, Load

__all__ = ["Bottleneck", "Cycle", "Model", "bottleneck"]

EXPLAINED = 0.7
"""Minimum share of a step that the slowest cycle must explain. Below it, more ranks would not help."""
TOLERANCE = 0.05
"""Precision of the measurements, as a share of the time."""
ENOUGH = 0.03
"""Minimum share by which additional ranks must shorten a step together."""
MOST_LOOPS = 1000


class Bottleneck(NamedTuple):
    """The bottleneck of a job: `role`, and `edge`, on which others lose most of the time that the role costs them.

    `loop`: the roles that wait for each other in turn, if a loop is the bottleneck; `role` is the one of them that
    computes the most.
    """

    role: str
    edge: EdgeLoad
    loop: tuple[str, ...] = ()

    def __str__(self) -> str:
        edge, share = self.edge, max(self.edge.waiting, self.edge.blocked)
        if edge.producer == self.role:
            lost = f"{edge.consumer} waited for {edge.param} from {self.role} for {share:.0%} of the time"
        else:
            lost = f"{edge.producer} waited until {self.role} took {edge.param} for {share:.0%} of the time"
        return f"{lost}; {' → '.join((*self.loop, self.loop[0]))} wait for each other in turn" if self.loop else lost


class Cycle(NamedTuple):
    """Roles in a loop, or a single role, with the number of their steps that may be under way at a time."""

    roles: tuple[str, ...]
    tokens: int


class Model:
    """The measured job, with any sizes."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.sizes = {role.role: role.ranks for role in load.roles}
        self.work = {role.role: role.busy * role.ranks for role in load.roles}
        self.cycles = tuple(self._cycles())

    def _cycles(self) -> Iterator[Cycle]:
        """Yield the cycles. Roles without edges are in none, because no role waits for them."""
        busy = {role.role: role.busy for role in self.load.roles}
        after = dict[str, dict[str, int]]()  # role → who takes what it makes → the least lag
        for edge in self.load.edges:
            takers = after.setdefault(edge.producer, {})
            takers[edge.consumer] = min(edge.lag, takers.get(edge.consumer, edge.lag))
            after.setdefault(edge.consumer, {})
        for role in sorted(after):
            yield Cycle((role,), 1)
        for loop in islice(_loops(after), MOST_LOOPS):
            done = sum(busy[role] for role in loop)
            lag = sum(after[role][follower] for role, follower in zip(loop, loop[1:] + loop[:1], strict=True))
            yield Cycle(loop, max(1, lag, ceil(done - TOLERANCE)))

    def takes(self, cycle: Cycle, sizes: Mapping[str, int], utilization: float = 1.0) -> float:
        """Return the time of a step by `cycle`. A single role gets the time in which it would be busy for
        `utilization`."""
        share = utilization if len(cycle.roles) == 1 else 1.0
        return sum(self.work[role] / sizes[role] for role in cycle.roles) / share / cycle.tokens

    def step(self, sizes: Mapping[str, int]) -> float:
        """Return the time of a step with these sizes, which is that of the slowest cycle."""
        return max((self.takes(cycle, sizes) for cycle in self.cycles), default=0.0)

    def shorter(self, sizes: Mapping[str, int]) -> float:
        """Return the share by which steps get shorter with `sizes` instead of the measured ones; below 0: longer.

        Roles that `sizes` does not name keep theirs. The part of a step that no cycle explains stays as long as it is.
        """
        now = self.step(self.sizes)
        return (now - self.step({**self.sizes, **sizes})) / max(1.0, now)

    @property
    def explained(self) -> bool:
        """Return whether the computing of roles explains the time of a step."""
        return self.step(self.sizes) >= EXPLAINED

    def bottleneck(self) -> Bottleneck | None:
        """Return the bottleneck; None if it is not a role, or no role sends to another."""
        if not self.cycles or not self.explained:
            return None
        most = self.step(self.sizes) - TOLERANCE / 2
        slowest = [cycle for cycle in self.cycles if self.takes(cycle, self.sizes) >= most]
        slow = max(slowest, key=lambda cycle: (-len(cycle.roles), self.takes(cycle, self.sizes)))
        role = max(slow.roles, key=lambda role: self.work[role] / self.sizes[role])
        at = slow.roles.index(role)
        loop = (*slow.roles[at:], *slow.roles[:at]) if len(slow.roles) > 1 else ()
        given = [e for e in self.load.edges if e.producer == role and e.consumer in (loop[1:2] or [e.consumer])]
        taken = [e for e in self.load.edges if e.consumer == role and not loop]
        waited = max(given, key=lambda e: e.waiting, default=None)
        blocked = max(taken, key=lambda e: e.blocked, default=None)
        if blocked is None or (waited is not None and waited.waiting >= min(TOLERANCE, blocked.blocked)):
            blocked = waited
        assert blocked is not None, "a role in a cycle has an edge"
        return Bottleneck(role, blocked, loop)

    def allocate(
        self,
        most: Mapping[str, int],
        least: Mapping[str, int],
        cost: Mapping[str, float],
        budget: float,
        utilization: float,
    ) -> dict[str, int]:
        """Return the sizes with the shortest step for `budget`, with no more ranks than that takes.

        Starting at `least`, the slowest cycle gets one rank after the other, each where it shortens the cycle most for
        its cost (Fox 1966, "Discrete optimization via marginal analysis": optimal for a sum of convex functions). The
        loop ends when the slowest roles are not in `least`, and the others are busy for `utilization` of that time.
        """
        sizes = {**self.sizes, **least}
        spent = sum(cost[role] * size for role, size in least.items())
        floor = max((self.takes(c, sizes) for c in self.cycles if not least.keys() & set(c.roles)), default=0.0)
        tried = [(self.step(sizes), dict(sizes))]
        while self.cycles:

            def urgent(cycle: Cycle) -> tuple[float, float]:
                share = utilization if least.keys() & set(cycle.roles) else 1.0
                return max(self.takes(cycle, sizes), floor), self.takes(cycle, sizes, share)

            slow = max(self.cycles, key=urgent)
            if urgent(slow)[1] <= floor:
                return sizes
            fits = [r for r in slow.roles if r in least and sizes[r] < most[r] and spent + cost[r] <= budget]
            if not fits:
                break
            role = max(fits, key=lambda r: self.work[r] / sizes[r] / (sizes[r] + 1) / cost[r])
            sizes[role] += 1
            spent += cost[role]
            tried.append((self.step(sizes), dict(sizes)))
        best = tried[-1][0]
        return next(found for step, found in tried if step <= best * (1 + ENOUGH))

    def spare(self, least: Mapping[str, int], utilization: float) -> dict[str, int]:
        """Return smaller sizes for roles that can do with fewer ranks: a step takes no longer, and they are busy for
        `utilization` of it."""
        sizes, step = dict(self.sizes), self.step(self.sizes)
        for role in least:
            mine = [cycle for cycle in self.cycles if role in cycle.roles]
            while mine and sizes[role] > least[role]:
                fewer = {**sizes, role: sizes[role] - 1}
                if any(self.takes(cycle, fewer, utilization) > step for cycle in mine):
                    break
                sizes = fewer
        return {role: size for role, size in sizes.items() if size < self.sizes[role]}


def bottleneck(load: Load) -> Bottleneck | None:
    """Return the bottleneck of a job; None if it is nothing that its roles compute, or no role sends to another."""
    return Model(load).bottleneck()


def _loops(after: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, ...]]:
    """Yield the loops of roles, each once, starting with its first role by name."""

    def walk(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for role in sorted(after[path[-1]]):
            if role == path[0] and len(path) > 1:
                yield path
            elif role > path[0] and role not in path:
                yield from walk((*path, role))

    for role in sorted(after):
        yield from walk((role,))
