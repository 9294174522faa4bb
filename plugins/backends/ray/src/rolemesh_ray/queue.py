"""The order of the jobs that wait for room on a Ray cluster, and what each may take: pure functions.

Each waiting job has a place: the resources of a plan on the whole cluster, by node. The cluster keeps them for it as
they become free, so a job gets only what those before it leave. A large job therefore waits for no job that came after
it, and a small job need not wait for a large one on other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.placement import PlacementPlan

__all__ = ["Amounts", "Living", "Plan", "QueuePlace", "ahead", "aim", "fit", "least", "left", "less", "reason"]
__all__ += ["spare", "total"]

STALE_S = 5.0
LATER_JOBS = 100
"""Number of later jobs that a point of priority is worth. So a stream of jobs holds no job up for ever."""
SHOWN = 3
"""Number of jobs that a reason names; it counts the others."""
ROUNDING = 1e-9
Amounts: TypeAlias = Mapping[str, Mapping[str, float]]
"""Amounts of resources by node, or by job: ``{"node-a": {"cpu": 3.0, "gpu": 1.0}}``."""
Wanted: TypeAlias = dict[str, dict[str, float]]
Plan: TypeAlias = Callable[[ClusterView], PlacementPlan]
"""The strategies of a job, which place its ranks on nodes."""


class QueuePlace(msgspec.Struct, frozen=True):
    """A job in the queue.

    `number` grows with arrival. `beat` counts the renewals. `wanted` has the resources that the job waits for, or those
    with which it `starts`, by node.
    """

    job: str
    user: str
    priority: int
    number: int
    ticket: str
    beat: int = 0
    wanted: Wanted = {}
    starts: bool = False


def ahead(places: Iterable[QueuePlace], mine: QueuePlace | None) -> list[QueuePlace]:
    """Return the entries before `mine`, the first one first; all for None.

    A job that starts is before all others. Then the earliest arrival comes first; with each point of priority, a job
    counts as if `LATER_JOBS` of the others had come after it.
    """
    others = (p for p in places if mine is None or p.ticket != mine.ticket)
    return sorted((p for p in others if mine is None or p.starts or _order(p) < _order(mine)), key=_order)


def _order(place: QueuePlace) -> tuple[bool, int, int, str]:
    return not place.starts, place.number - LATER_JOBS * place.priority, place.number, place.ticket


def left(free: ClusterView, places: Iterable[QueuePlace], mine: QueuePlace | None) -> ClusterView:
    """Return what `mine`, or a job that runs and would grow (None), may take of the `free` resources."""
    for place in ahead(places, mine):
        free = less(free, place.wanted)
    return free


def spare(usable: ClusterView, free: ClusterView, places: Iterable[QueuePlace]) -> ClusterView:
    """Return what a job that runs may use if it grows: the `usable` resources, which are its own and the `free` ones,
    without the free ones for which the jobs in `places` wait."""
    kept: Wanted = {}
    for node, rest in zip(free.nodes, left(free, places, None).nodes, strict=True):
        custom = {name: has - rest.custom[name] for name, has in node.custom.items()}
        kept[node.id] = {"cpu": node.cpu - rest.cpu, "gpu": node.gpu - rest.gpu, **custom}
    return less(usable, kept)


def less(cluster: ClusterView, taken: Amounts) -> ClusterView:
    """Return the cluster without the amounts `taken`, by node. Whole GPUs remain, and no amount is below 0."""

    def rest(has: float, amount: float) -> float:
        return max(0.0, has - amount)

    nodes = []
    for node in cluster.nodes:
        if of := taken.get(node.id):
            custom = {name: rest(has, of.get(name, 0.0)) for name, has in node.custom.items()}
            gpu = int(rest(node.gpu, of.get("gpu", 0.0)) + ROUNDING)
            node = msgspec.structs.replace(node, cpu=rest(node.cpu, of.get("cpu", 0.0)), gpu=gpu, custom=custom)
        nodes.append(node)
    return ClusterView(tuple(nodes))


def least(one: ClusterView, other: ClusterView) -> ClusterView:
    """Return the nodes that are in both, with the smaller amounts."""
    second = {node.id: node for node in other.nodes}
    nodes = []
    for node in one.nodes:
        if (also := second.get(node.id)) is not None:
            custom = {name: min(has, also.custom.get(name, 0.0)) for name, has in node.custom.items()}
            cpu, gpu = min(node.cpu, also.cpu), min(node.gpu, also.gpu)
            nodes.append(msgspec.structs.replace(node, cpu=cpu, gpu=gpu, custom=custom))
    return ClusterView(tuple(nodes))


def fit(cluster: ClusterView, wanted: Amounts) -> bool:
    """Return whether the nodes have the amounts `wanted`."""
    nodes = {node.id: {"cpu": node.cpu, "gpu": node.gpu, **node.custom} for node in cluster.nodes}
    return all(
        amount <= nodes.get(node, {}).get(name, 0.0) + ROUNDING
        for node, of in wanted.items()
        for name, amount in of.items()
    )


def total(amounts: Amounts) -> dict[str, float]:
    """Return the sums over all nodes, by resource."""
    sums: dict[str, float] = {}
    for of in amounts.values():
        for name, amount in of.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


class Living:
    """Tells the entries of living drivers from those of dead ones, by this process's clock: a driver renews its entry
    every second. Clocks of two machines are not compared."""

    def __init__(self) -> None:
        self._renewed: dict[str, tuple[int, float]] = {}

    def among(self, places: Iterable[QueuePlace], now: float) -> list[QueuePlace]:
        """Return those of `places` that were renewed within `STALE_S` seconds or are seen for the first time."""
        known, self._renewed = self._renewed, {}
        found = []
        for place in places:
            beat, since = known.get(place.ticket, (-1, now))
            self._renewed[place.ticket] = (place.beat, since if beat == place.beat else now)
            if now <= self._renewed[place.ticket][1] + STALE_S:
                found.append(place)
        return found


def aim(wanted: Wanted, before: Iterable[QueuePlace], nodes: ClusterView, plan: Plan) -> Wanted:
    """Return the resources of the whole `nodes` that the cluster keeps for a job: those `wanted` so far, until a node
    is gone. If they changed, jobs behind it could already have the others.

    At first they are some that no job `before` it wants, if possible.
    """
    if wanted and fit(nodes, wanted):
        return wanted
    found = plan(left(nodes, before, None))
    return (plan(nodes) if found.unplaced else found).bundles()


def reason(plan: PlacementPlan, before: Sequence[QueuePlace], held: Amounts) -> str:
    """Return what a job waits for: the resources that the first unplaced rank of `plan` lacks, the jobs that have some
    (`held`, by job), and the jobs `before` it."""
    first = plan.unplaced[0]
    count = f" and {len(plan.unplaced) - 1} more" if len(plan.unplaced) > 1 else ""
    holders = [f"job {job} has {_told(of)}" for job, of in held.items()]
    waiting = [
        f"job {each.job} of {each.user}, priority {each.priority}, "
        f"{'starts with' if each.starts else 'is before this one and waits for'} {_told(total(each.wanted))}"
        for each in before
    ]
    said = [f"{first.ref}{count}: {first.reason}", *_first(holders), *_first(waiting)]
    return "; ".join(said if len(said) > 1 else [*said, "other work on this Ray has the rest"])


def _told(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {round(amount, 3):g}" for name, amount in amounts.items() if amount) or "nothing"


def _first(told: Sequence[str]) -> list[str]:
    more = len(told) - SHOWN
    return [*told[:SHOWN], *([f"and {more} more"] if more > 0 else [])]
