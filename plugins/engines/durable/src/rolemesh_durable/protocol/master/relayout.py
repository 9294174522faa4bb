"""What a stop point that is given up, and the transitions of a resize, mean for a job's state: part of `apply`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.master import state as st
from rolemesh_durable.protocol.master import transitions as t

__all__ = ["Resizing", "given_up", "resize"]

Resizing: TypeAlias = t.ResizeAsked | t.LayoutChanged | t.Resized | t.ResizeRefused


def resize(state: st.JobState, happened: Resizing) -> None:
    """Bring `state` to where it is after what has happened."""
    match happened:
        case t.ResizeAsked(number, sizes, reason):
            state.asked.resizes, state.asked.resize = number, st.Resize(number, sizes, reason)
        case t.LayoutChanged():
            _relayout(state, happened)
        case t.Resized() | t.ResizeRefused():
            state.asked.resize = None
            if state.stop.then == "relayout":
                state.stop = given_up(state.stop)


def given_up(stop: t.StopPoint) -> t.StopPoint:
    """Nothing happens at this stop point any more. Ranks that have heard of it take no earlier one."""
    return t.StopPoint(stop.step, "go_on", "")


def _relayout(state: st.JobState, changed: t.LayoutChanged) -> None:
    layout = state.layout = changed.layout
    step = layout.step
    state.origin, state.asked.resizes = st.Origin(layout.folder, step), changed.number
    state.committed = state.persisted = step
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
    if (recovery := state.recovery) is not None:
        recovery.plan = msgspec.structs.replace(recovery.plan, restart=tuple(after))
    for key in before.keys() - after.keys():
        state.reached.pop(key, None)
