"""How many ranks elastic roles get: as many as there is room for, shared out evenly. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

__all__ = ["largest"]


def largest(ranges: Mapping[str, tuple[int, int]], fits: Callable[[Mapping[str, int]], bool]) -> dict[str, int]:
    """World sizes within `ranges` (role → least, most) for which `fits` is true.

    All of the most, if they fit. Otherwise roles grow from the least in turns, each to its next size that fits, until
    none can. If even the least do not fit, they are the answer.
    """
    most = {role: high for role, (_, high) in ranges.items()}
    if fits(most):
        return most
    sizes = {role: low for role, (low, _) in ranges.items()}
    growing = list(ranges) if fits(sizes) else []
    while growing:
        for role in list(growing):
            larger = range(sizes[role] + 1, ranges[role][1] + 1)
            found = next((size for size in larger if fits({**sizes, role: size})), None)
            if found is None:
                growing.remove(role)
            else:
                sizes[role] = found
    return sizes
