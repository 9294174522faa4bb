"""Check plans: ask each strategy, and check that its plan is possible and keeps earlier decisions.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import PlacementError
from rolemesh.placement.builder import violations
from rolemesh.placement.capacity import Capacity
from rolemesh.placement.constraints import revived
from rolemesh.placement.plan import PlacementPlan, PlacementRequest

TOLERANCE = 1e-6


def problems(
    request: PlacementRequest, cluster: ClusterView, before: PlacementPlan, after: PlacementPlan
) -> Iterator[str]:
    """Yield the reasons for which `after` is impossible or changes a decision of `before`.

    Each reason completes a sentence that begins with the strategy's name. Only the first one is
    reliable: others may follow from it or be missing.
    """
    yield from undone(before, after)
    yield from misplaced(request, after)
    yield from overcommitted(cluster, after)
    yield from forbidden(request, cluster, before, after)


def revive(plan: PlacementPlan) -> PlacementPlan:
    """Return the plan with its decoded constraints as `Constraint` objects, as far as their classes
    are imported."""
    return msgspec.structs.replace(plan, constraints=tuple(map(revived, plan.constraints)))


def undone(before: PlacementPlan, after: PlacementPlan) -> Iterator[str]:
    """Yield the decisions of `before` that `after` changes."""
    if after.slots[: len(before.slots)] != before.slots:
        yield "changed slots that were decided before"
    if [slot.id for slot in after.slots] != list(range(len(after.slots))):
        yield "numbered its slots other than by position"
    kept = set(after.assignments)
    if lost := [a for a in before.assignments if a not in kept]:
        yield f"moved {lost[0].ref}, which was placed before"
    if after.constraints[: len(before.constraints)] != before.constraints:
        yield "dropped a constraint of a strategy before it"


def misplaced(request: PlacementRequest, plan: PlacementPlan) -> Iterator[str]:
    """Yield assignments of unknown ranks, assignments to unknown slots, and ranks that are placed
    twice."""
    sizes = {role.role: role.world_size for role in request.roles}
    seen: set[RankRef] = set()
    for a in plan.assignments:
        if a.role not in sizes:
            yield f"placed the unknown role {a.role!r}; the job has {', '.join(sizes)}"
        elif not 0 <= a.rank < sizes[a.role]:
            yield f"placed {a.ref}, but the role has {sizes[a.role]} ranks"
        if not 0 <= a.slot < len(plan.slots):
            yield f"put {a.ref} on slot {a.slot}, which does not exist"
        if a.ref in seen:
            yield f"placed {a.ref} twice"
        seen.add(a.ref)


def overcommitted(cluster: ClusterView, plan: PlacementPlan) -> Iterator[str]:
    """Yield slots on unknown nodes, and resources that are overcommitted, with each GPU on its
    own."""
    known = {node.id: node for node in cluster.nodes}
    devices: dict[tuple[str, int], float] = {}
    for slot in plan.slots:
        if slot.node not in known:
            yield f"made slot {slot.id} on node {slot.node!r}, which does not exist"
            return
        for name, amount in {"cpu": slot.cpu, "gpu": slot.gpu, **slot.custom}.items():
            if not 0 <= amount < inf:
                yield f"gave slot {slot.id} {amount:g} {name}, which is no amount"
        if not all(0 <= share <= 1 for _, share in slot.gpus):
            yield f"gave slot {slot.id} a share of a GPU that is not between 0 and 1"
        if abs(sum(share for _, share in slot.gpus) - slot.gpu) > TOLERANCE:
            yield (
                f"gave slot {slot.id} {slot.gpu:g} GPUs, but the shares of its devices "
                "add up to something else"
            )
        for index, share in slot.gpus:
            devices[slot.node, index] = devices.get((slot.node, index), 0.0) + share
    for (node, index), share in devices.items():
        if not 0 <= index < known[node].gpu:
            yield f"used GPU {index} of {node}, which has {known[node].gpu:g}"
        elif share > 1 + TOLERANCE:
            yield f"gave away {share:g} of GPU {index} on {node}"
    capacity = Capacity(cluster, plan.slots)
    for node in known:
        for name, amount in capacity.free(node).items():
            if amount < -TOLERANCE:
                yield f"took {-amount:g} {name} more than {node} has"


def forbidden(
    request: PlacementRequest, cluster: ClusterView, before: PlacementPlan, after: PlacementPlan
) -> Iterator[str]:
    """Yield the violations of constraints in `after` that were not already in `before`; the loss of
    a node may leave such."""
    held = set(before.assignments)
    for constraint, a in violations(
        after, cluster, {role.role: role.world_size for role in request.roles}
    ):
        node = after.slots[a.slot].node
        if a not in held:
            yield f"put {a.ref} on {node}, but {constraint.told()}"
        elif constraint not in before.constraints:
            where = f"{a.ref} is on {node} ({a.rule})"
            yield f"demands what the plan before does not meet: {constraint.told()}, but {where}"


def ask(
    name: str,
    place: Callable[[PlacementRequest, ClusterView, PlacementPlan], PlacementPlan | None],
    request: PlacementRequest,
    cluster: ClusterView,
    before: PlacementPlan,
) -> PlacementPlan:
    """Ask one strategy and return its checked plan. A rank that it refuses stays in `unplaced`
    unless another strategy places it.

    Raises `PlacementError` with the strategy's name if its plan is impossible or changes an earlier
    decision.
    """
    before = revive(before)
    after = place(request, cluster, before)
    return checked(name, request, cluster, before, before if after is None else after)


def checked(
    name: str,
    request: PlacementRequest,
    cluster: ClusterView,
    before: PlacementPlan,
    after: PlacementPlan,
) -> PlacementPlan:
    """Return `after` with those refusals of `before` that it does not overrule. Raises
    `PlacementError` as `ask` does."""
    if not isinstance(after, PlacementPlan):
        raise impossible(name, f"returned a {type(after).__name__}, not a PlacementPlan")
    before, after = revive(before), revive(after)
    try:
        problem = next(problems(request, cluster, before, after), None)
    except PlacementError:
        raise  # of a constraint, which it names
    except Exception as error:
        raise impossible(
            name, f"returned a plan that cannot be read: {type(error).__name__}: {error}"
        ) from error
    if problem is not None:
        raise impossible(name, problem)
    placed = after.placed()
    verdicts = {u.ref: u for u in (*before.unplaced, *after.unplaced) if u.ref not in placed}
    return msgspec.structs.replace(after, unplaced=tuple(verdicts.values()))


def impossible(name: str, problem: str) -> PlacementError:
    """Return the error for an answer of a strategy that is not a possible plan."""
    remedy = "use another strategy, or report it to the plugin's author"
    return PlacementError(
        f"the placement strategy {name!r} {problem}", where="placement", remedy=remedy
    )
