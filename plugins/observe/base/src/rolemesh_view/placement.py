"""The nodes of a run and their ranks, from its events. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from rolemesh.api.observer import Event
from rolemesh.api.rank_ref import RankRef

__all__ = ["Node", "Place", "nodes", "nodes_of"]


class Place(NamedTuple):
    """A rank on a node. `generation` counts its starts, from 0."""

    role: str
    rank: int
    generation: int
    pid: int


class Node(NamedTuple):
    """A node with its agent, and the ranks whose latest process started there."""

    name: str
    agents: tuple[str, ...]
    ranks: tuple[Place, ...]


def nodes(events: Iterable[Event], sizes: Mapping[str, int]) -> list[Node]:
    """Return the nodes of a run by name, without ranks that a resize to `sizes` ended.

    The function skips malformed events.
    """
    agents: dict[str, dict[str, None]] = {}
    places: dict[tuple[str, int], tuple[str, Place]] = {}
    for event in events:
        data = event.data
        node = data.get("node")
        if not isinstance(node, str):
            continue
        if event.kind == "agent_up":
            agents.setdefault(node, {})[str(data.get("agent"))] = None
        elif event.kind == "rank_up" and isinstance(role := data.get("role"), str):
            rank, generation, pid = (_int(data.get(name)) for name in ("rank", "generation", "pid"))
            if rank < sizes.get(role, rank + 1):
                places[role, rank] = node, Place(role, rank, generation, pid)
    there: dict[str, list[Place]] = {name: [] for name in agents}
    for node, place in places.values():
        there.setdefault(node, []).append(place)
    return [Node(name, tuple(agents.get(name, ())), tuple(sorted(there[name]))) for name in sorted(there)]


def nodes_of(events: Sequence[Event], ranks: Collection[RankRef]) -> list[str]:
    """Return the nodes on which the latest processes of these ranks started, sorted."""
    left, found = set(ranks), set[str]()
    for event in reversed(events):
        if not left:
            break
        if event.kind == "rank_up":
            role, rank, node = (event.data.get(name) for name in ("role", "rank", "node"))
            if isinstance(role, str) and isinstance(rank, int) and (ref := RankRef(role, rank)) in left:
                left.remove(ref)
                found |= {node} if isinstance(node, str) else set()
    return sorted(found)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
