"""How many ranks elastic roles get: as many as there is room for, shared out evenly. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import PlacementError
from rolemesh.graph.logical import LogicalGraph
from rolemesh.job.planning import plan_selected
from rolemesh.plugins.select import Selection
from rolemesh.spec import JobFile, WorldSize

__all__ = ["elastic_roles", "has_room", "largest"]


def elastic_roles(job: JobFile) -> dict[str, tuple[int, int]]:
    """The elastic roles, each with the least and the most ranks that it may have."""
    sizes = {name: role.world_size for name, role in job.spec.roles.items()}
    return {name: (size.least, int(size)) for name, size in sizes.items() if isinstance(size, WorldSize)}


def has_room(
    job: JobFile, selection: Selection, graph: LogicalGraph, cluster: ClusterView, sizes: Mapping[str, int]
) -> bool:
    """Whether every rank has a place if roles have the world sizes `sizes`; the other roles have their own."""
    roles = {
        name: role.model_copy(update={"world_size": sizes.get(name, role.world_size)})
        for name, role in job.spec.roles.items()
    }
    sized = dataclasses.replace(job, spec=job.spec.model_copy(update={"roles": roles}))
    try:
        return not plan_selected(sized, selection, graph, cluster).unplaced
    except PlacementError:
        return False


def largest(ranges: Mapping[str, tuple[int, int]], fits: Callable[[Mapping[str, int]], bool]) -> dict[str, int]:
    """World sizes within `ranges` (role → least, most) for which `fits` is true.

    All of the most, if they fit. Otherwise roles grow from the least in turns, each to its next size that fits, until
    none can. If even the least do not fit, they are the answer.
    """
    most = {role: high for role, (_, high) in ranges.items()}
    if fits(most):
        return most
    sizes = {role: low for role, (low, _) in ranges.items()}
    if not fits(sizes):
        return sizes
    growing = list(ranges)
    while growing:
        for role in list(growing):
            larger = range(sizes[role] + 1, ranges[role][1] + 1)
            found = next((size for size in larger if fits({**sizes, role: size})), None)
            if found is None:
                growing.remove(role)
            else:
                sizes[role] = found
    return sizes
