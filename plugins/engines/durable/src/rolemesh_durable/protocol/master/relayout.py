"""The effect of a new layout, and of a stop point that the master gives up, on a job's state: part of `apply`."""

from __future__ import annotations

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.master import state as st
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.metrics.line_cuts import with_end

__all__ = ["given_up", "relayout"]


def given_up(stop: t.StopPoint) -> t.StopPoint:
    """Return the given-up form of a stop point. Ranks that know it accept no earlier one."""
    return t.StopPoint(stop.step, "go_on", "")


def relayout(state: st.JobState, changed: t.LayoutChanged) -> None:
    """Change `state` to the layout for which all ranks have stopped."""
    layout = state.layout = changed.layout
    step = layout.step
    state.origin, state.layouts = st.Origin(layout.folder, step), changed.number
    state.committed = state.persisted = step
    state.cuts = with_end(state.cuts, step, step)  # no line has steps of two layouts
    state.plan = changed.plan
    for place in changed.places:
        st.place(state, place)
    moves = {move.ref: move for move in changed.moves}
    before, after = state.ranks, dict[RankRef, st.RankRecord]()
    for key, record in before.items():
        role = key[0]
        record.finished = record.durable = step
        if role not in changed.roles:
            after[key] = record
            if (moved := moves.get(key)) is not None:
                record.agent, record.launch = moved.agent, moved.applied(record.launch)
        elif key[1] == 0:  # its other ranks follow it, all in one generation that none of them has had
            generation = max(each.launch.generation for (name, _), each in before.items() if name == role)
            for rank in range(layout.sizes[role]):
                move = moves[RankRef(role, rank)]
                launch = msgspec.structs.replace(
                    move.applied(record.launch), rank=rank, world_size=layout.sizes[role], generation=generation,
                    collective=role in changed.groups, layout=layout,
                )  # fmt: skip
                after[RankRef(role, rank)] = st.RankRecord(launch, move.agent, "halting", finished=step, durable=step)
    state.ranks = after
    state.index()
    if (recovery := state.recovery) is not None:
        recovery.plan = msgspec.structs.replace(recovery.plan, restart=tuple(after))
    for key in before.keys() - after.keys():
        state.reached.pop(key, None)
