"""The phases of a rank that calls services of other ranks, or that others call."""

from __future__ import annotations

from typing import Final

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import LogicalGraph
from rolemesh_durable.extensions.hangs.picture import Picture, Wait
from rolemesh_durable.protocol.messages import RankReport
from rolemesh_durable.protocol.rank.page import AddedPhase, add_phase

__all__ = ["CALLING", "FOLLOWING", "SERVING", "called_at", "position_of"]


def position_of(pair: int, rank: int) -> int:
    """Return the value of `EDGE` while the rank waits for a call to `rank` (-1: any) between roles of number `pair`."""
    return -2 - (pair << 20 | rank + 1)


def called_at(position: int, graph: LogicalGraph) -> RankRef | None:
    """Return the role and rank of `position_of`; None if `position` is not that of a call."""
    pair, rank = divmod(-2 - position, 1 << 20)
    return RankRef(graph.callers[pair][1], rank - 1) if 0 <= pair < len(graph.callers) else None


def _for_answer(picture: Picture, key: RankRef, report: RankReport) -> Wait:
    role, rank = called_at(report.edge, picture.graph) or ("", -1)
    asked = [k for k in picture.live if k[0] == role and rank in (k[1], -1)]
    return Wait(tuple(asked), "to answer a call")


def _for_callers(picture: Picture, key: RankRef, report: RankReport) -> Wait:
    callers = {caller for caller, callee in picture.graph.callers if callee == key[0]}
    behind = [k for k, r in picture.live.items() if k[0] in callers and (r.finished <= report.finished or r.frozen)]
    return Wait(tuple(behind), "to finish the step in which they call it")


def _called(picture: Picture, report: RankReport, at: str, for_s: str) -> tuple[str, str]:
    called = called_at(report.edge, picture.graph) or RankRef("", -1)
    whom = str(called) if called.rank >= 0 else f"a rank of {called.role}"
    return f"waited in {at} {for_s} for {whom} to answer a call", ", which is done"


CALLING: Final = add_phase(AddedPhase(6, "calling", _called, _for_answer, brief=True))
"""The rank waits for the answer to a call: see `position_of`."""
SERVING: Final = add_phase(
    AddedPhase(
        7, "serving", lambda picture, report, at, for_s: (f"been in a call of another role {for_s}", ""), brief=True
    )
)
"""The rank runs a call of another role."""
FOLLOWING: Final = add_phase(
    AddedPhase(
        8, "following", lambda picture, report, at, for_s:
        (f"waited {for_s} for its callers, after step {report.finished}", ", which are further"), _for_callers,
    )
)  # fmt: skip
"""The rank waits until the roles that call it have finished the step."""
