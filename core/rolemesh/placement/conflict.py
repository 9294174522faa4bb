"""Why there is no place: the smallest set of demands that no node meets together. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import combinations
from typing import TypeVar

__all__ = ["smallest_conflict"]

T = TypeVar("T", bound=Hashable)


def smallest_conflict(violated: Iterable[frozenset[T]]) -> tuple[T, ...]:
    """A smallest set of demands of which every node violates one, given what each node violates.

    Dropping any demand of the set would leave a node that meets the others. Ties go to what comes first among the
    nodes. Empty if there is no node; a node that violates nothing is an error of the caller (`ValueError`).

    >>> smallest_conflict([frozenset({"gpu"}), frozenset({"gpu", "rack"}), frozenset({"rack"})])
    ('gpu', 'rack')
    """
    sets = list(dict.fromkeys(violated))
    if not all(sets):
        raise ValueError("a node meets every demand")
    demands = list(dict.fromkeys(demand for each in sets for demand in sorted(each, key=repr)))
    for size in range(1, len(demands) + 1):
        for chosen in combinations(demands, size):
            if all(not each.isdisjoint(chosen) for each in sets):
                return chosen
    return ()
