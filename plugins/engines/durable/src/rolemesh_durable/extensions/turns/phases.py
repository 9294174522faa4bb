"""The phases of a rank that takes turns, or whose group begins its calls together."""

from __future__ import annotations

from typing import Final

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.hangs.picture import Picture, Wait, ahead
from rolemesh_durable.protocol.messages import RankReport
from rolemesh_durable.protocol.rank.page import COMPUTING, SAVING, AddedPhase, add_phase

__all__ = ["GATHERING", "LOADING", "TURN"]


def _for_turn(picture: Picture, key: RankRef, report: RankReport) -> Wait:
    """The rank waits for those on the slot, or else for those whose turn comes first."""
    mates = {k: picture.live[k] for k in picture.turns.get(key, ()) if k != key and k in picture.live}
    there = [k for k, r in mates.items() if r.frozen or r.phase in (COMPUTING, LOADING, SAVING)]
    before = [k for k, r in mates.items() if r.phase != TURN and not picture.past(r, report.op, report.step)]
    return Wait(tuple(there or before), "for its turn on their slot")


def _for_group(picture: Picture, key: RankRef, report: RankReport) -> Wait:
    mates = picture.others_of_role(key)
    away = [k for k, r in mates.items() if r.frozen or (r.phase != GATHERING and not ahead(r, report))]
    return Wait(tuple(away), "to begin the call together")


TURN: Final = add_phase(
    AddedPhase(
        4, "turn", lambda picture, report, at, for_s:
        (f"waited {for_s} for its turn before {at}", ", though nobody is before it"), _for_turn,
    )
)  # fmt: skip
"""The rank waits for its turn, on a slot whose ranks run one after the other."""
GATHERING: Final = add_phase(
    AddedPhase(
        5, "gathering", lambda picture, report, at, for_s:
        (f"waited {for_s} for its group before {at}", ", though all are there"), _for_group,
    )
)  # fmt: skip
"""The rank waits for the rest of its collective group, before a call."""
LOADING: Final = add_phase(
    AddedPhase(
        10, "loading", lambda picture, report, at, for_s:
        (f"loaded for its turn, or made room, {for_s} before {at}", ""),
    )
)  # fmt: skip
"""The rank loads for its turn on a slot, or makes room there."""
