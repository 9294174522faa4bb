"""The number and size of a job's nodes, found by planning the job with its own placement strategies on imagined
nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import NamedTuple

import msgspec

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.errors import PlacementError
from rolemesh.job.planning import check_placed
from rolemesh.job.prepared import Prepared
from rolemesh.placement.nodes import parse_nodes

USUAL_GPUS = 8
"""Default maximum of GPUs per node."""
GB_PER_CPU = 8
SHARED = 2
"""Factor from the memory that ranks reserve to the memory of a node, which includes ``/dev/shm`` with its snapshots."""


class Asked(NamedTuple):
    """The nodes that the user requested; None: whatever the job needs. `memory_gb` is in 10^9 bytes."""

    nodes: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory_gb: float | None = None


class Group(NamedTuple):
    """Equal nodes. The job can run on `least` nodes, and has all ranks it may have on `most`; it requests `number`."""

    node: NodeView
    least: int
    number: int
    most: int


def groups_of(prepared: Prepared, asked: Asked) -> tuple[Group, ...]:
    """Return the nodes for a job.

    Without a given size there is one node, unless the user asks for a number, the strategies need several nodes, or
    a node would have more than eight GPUs. Each node gets the smallest amount of each resource with which the job
    fits. Without a number and a size, elastic roles count with their minimum. Raises `PlacementError` if nothing fits.
    """
    prepared.plan_with_plenty()
    if asked.nodes and not asked.nodes.strip().isdigit():
        return _written(prepared, asked)
    least, most = ({role: sizes[i] for role, sizes in prepared.elastic.items()} for i in (0, 1))
    needs = _needs(prepared)
    total = {name: math.ceil(sum(each * n for each, n in of)) for name, of in needs.items()}
    total["cpu"] = max(1, total["cpu"])
    fixed: dict[str, float | None] = {"cpu": asked.cpus, "gpu": asked.gpus, "memory_gb": asked.memory_gb}
    size: dict[str, float] = {**total, **{name: amount for name, amount in fixed.items() if amount is not None}}
    if total["gpu"] > USUAL_GPUS and asked.gpus is None:
        fixed["gpu"] = size["gpu"] = USUAL_GPUS
    told = bool(asked.nodes) or any(amount is not None for amount in fixed.values())
    ranks = sum(n for _, n in needs["cpu"])

    def fits(count: int, sizes: Mapping[str, int], size: Mapping[str, float]) -> bool:
        return prepared.fits(sizes, _cluster(count, size))

    def first(sizes: Mapping[str, int], size: Mapping[str, float]) -> int | None:
        return _first(1, ranks, lambda count: fits(count, sizes, size))

    wanted = most if told else least
    number = int(asked.nodes) if asked.nodes else first(wanted, size)
    if not number or not (fits(number, wanted, size) or fits(number, least, size)):
        raise _misfit(prepared, _cluster(number or ranks, size), least)
    wanted = wanted if fits(number, wanted, size) else least
    for name in [name for name in size if fixed.get(name) is None]:
        low = max(math.ceil(max(each for each, _ in needs[name])), 1 if name == "cpu" else 0)

        def enough(amount: int, name: str = name) -> bool:
            return fits(number, wanted, size | {name: amount})

        size[name] = _first(low, math.ceil(size[name]), enough) or size[name]
    if "memory_gb" in size and asked.memory_gb is None:
        size["memory_gb"] = max(GB_PER_CPU * size["cpu"], SHARED * size["memory_gb"])
    node = _node(0, size)
    if not prepared.elastic:
        return (Group(node, number, number, number),)
    least_number = min(number, first(least, size) or number)
    return (Group(node, least_number, number if asked.nodes else least_number, max(number, first(most, size) or 0)),)


def _written(prepared: Prepared, asked: Asked) -> tuple[Group, ...]:
    """Return groups that are spelled out as for `rolemesh plan --nodes`."""
    if any(amount is not None for amount in (asked.cpus, asked.gpus, asked.memory_gb)):
        what = "--nodes says itself how large its nodes are"
        remedy = "leave out --cpus-per-node, --gpus-per-node and --memory-per-node, or give --nodes a number"
        raise PlacementError(what, where=asked.nodes, remedy=remedy)
    cluster = parse_nodes(asked.nodes or "")
    check_placed(prepared.fitted(cluster).plan(cluster), prepared.job)
    equal = groupby(cluster.nodes, lambda node: msgspec.structs.replace(node, id=""))
    counted = [(next(iter(nodes)), 1 + sum(1 for _ in nodes)) for _, nodes in equal]
    return tuple(Group(node, count, count, count) for node, count in counted)


def _needs(prepared: Prepared) -> dict[str, list[tuple[float, int]]]:
    """Return, by resource, the needs of a rank of each role and the maximum number of its ranks."""
    roles = prepared.request.roles
    names = ("cpu", "gpu", *sorted({name for role in roles for name in role.custom}))
    return {name: [(role.needs.get(name, 0.0), role.world_size) for role in roles] for name in names}


def _node(number: int, size: Mapping[str, float]) -> NodeView:
    custom = {name: float(amount) for name, amount in size.items() if name not in ("cpu", "gpu")}
    return NodeView(f"node-{number}", cpu=float(size["cpu"]), gpu=int(size["gpu"]), custom=custom)


def _cluster(count: int, size: Mapping[str, float]) -> ClusterView:
    return ClusterView(tuple(_node(number, size) for number in range(count)))


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the first number for which `holds` is true, if it is then true for all above; None if it is false for
    `high`."""
    if low > high or not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _misfit(prepared: Prepared, cluster: ClusterView, sizes: Mapping[str, int]) -> PlacementError:
    """Return why a job does not fit, in the words of its strategies."""
    check_placed(prepared.plan(cluster, sizes), prepared.job)
    node = cluster.nodes[0]
    what = f"the job does not fit on {len(cluster.nodes)} nodes of {node.cpu:g} CPUs and {node.gpu:g} GPUs"
    return PlacementError(what, remedy="give larger nodes, or spell them out: --nodes '4x(cpu=32,gpu=8,label.rack=a)'")
