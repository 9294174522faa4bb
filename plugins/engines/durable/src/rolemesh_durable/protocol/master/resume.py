"""From where ranks can go on: the newest step that all ranks of a group can be restored to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.master.state import Origin

__all__ = ["Resume", "resume_points"]


class Resume(msgspec.Struct, frozen=True):
    """A rank's resume step, where its state is, and the agent that it has to be fetched from, if it has to."""

    step: int
    restore: Literal["none", "memory", "disk"]
    replica: str = ""


def resume_points(
    groups: Sequence[Sequence[RankRef]],
    held: Mapping[RankRef, Mapping[str, Sequence[int]]],
    copies: Mapping[RankRef, Mapping[str, Sequence[int]]],
    agents: Mapping[RankRef, str],
    committed: int,
    origin: Origin,
) -> dict[RankRef, Resume] | str:
    """A `Resume` for every rank of `groups`, or what is missing.

    `held`: by rank the steps that each agent's memory has, `copies` those that it keeps for another agent's ranks,
    `agents` where the ranks are going to run. A step before `committed` will not do, because its inputs are not kept
    any more; the beginning of the timeline will where nothing after it has been committed.
    """
    points: dict[RankRef, Resume] = {}
    for group in groups:
        having = {key: [*held.get(key, {}).items(), *copies.get(key, {}).items()] for key in group}
        common = set.intersection(
            *({step for _, steps in having[key] for step in steps if step >= committed} for key in group)
        )
        if common:
            step = max(common)
            for key in group:
                here = step in held.get(key, {}).get(agents[key], ())
                others = sorted(name for name, steps in having[key] if step in steps)
                other = agents[key] if agents[key] in others else others[0]
                points[key] = Resume(step, "memory", "" if here else other)
        elif committed <= origin.step:
            restore: Literal["none", "disk"] = "disk" if origin.step >= 0 else "none"
            points |= {key: Resume(origin.step, restore) for key in group}
        else:
            names = ", ".join(map(str, group))
            return f"no snapshot of {names} at or after step {committed} is left in any node's memory"
    return points
