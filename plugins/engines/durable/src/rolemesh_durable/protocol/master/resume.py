"""The steps from which ranks can continue: the newest step to which all ranks of a group can be restored. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.master.state import Origin

__all__ = ["Resume", "resume_points"]


class Resume(msgspec.Struct, frozen=True):
    """A rank's resume step, the place of its state, and the agent to fetch it from ("" if it is on the node)."""

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
    """Return a `Resume` for every rank of `groups`, or what is missing, in words.

    `held` has the steps in each agent's memory, by rank. `copies` has those that an agent keeps for another agent's
    ranks. `agents` has the agents on which the ranks will run. A step before `committed` is too old, because its inputs
    are gone. The beginning of the timeline is allowed if no later step is committed.
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
