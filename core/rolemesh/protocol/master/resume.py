"""From where ranks can go on: the newest step that all ranks of a group can be restored to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from rolemesh.protocol.master.records import RankKey

__all__ = ["Origin", "Resume", "resume_points"]


class Origin(msgspec.Struct, frozen=True):
    """The persisted snapshot that this timeline of the job began with; step -1 for none."""

    folder: str = ""
    step: int = -1


class Resume(msgspec.Struct, frozen=True):
    """A rank's resume step, where its state is, and the other agent that holds it, if one does."""

    step: int
    restore: Literal["none", "memory", "disk"]
    replica: str = ""


def resume_points(
    groups: Sequence[Sequence[RankKey]],
    held: Mapping[RankKey, Mapping[str, Sequence[int]]],
    agents: Mapping[RankKey, str],
    committed: int,
    origin: Origin,
) -> dict[RankKey, Resume] | str:
    """A `Resume` for every rank of `groups`, or what is missing.

    `held`: by rank the steps that each agent's memory has, `agents` where the ranks are going to run. A step before
    `committed` will not do, because its inputs are not kept any more; the beginning of the timeline will where nothing
    after it has been committed.
    """
    points: dict[RankKey, Resume] = {}
    for group in groups:
        common = set.intersection(
            *({step for steps in held.get(key, {}).values() for step in steps if step >= committed} for key in group)
        )
        if common:
            step = max(common)
            for key in group:
                here = step in held[key].get(agents[key], ())
                other = "" if here else next(a for a, steps in sorted(held[key].items()) if step in steps)
                points[key] = Resume(step, "memory", other)
        elif committed <= origin.step:
            restore: Literal["none", "disk"] = "disk" if origin.step >= 0 else "none"
            points |= {key: Resume(origin.step, restore) for key in group}
        else:
            names = ", ".join(f"{role}/{rank}" for role, rank in group)
            return f"no snapshot of {names} at or after step {committed} is left in any node's memory"
    return points
