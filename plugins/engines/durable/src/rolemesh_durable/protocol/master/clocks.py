"""Conversion of times between masters whose clocks differ: those of two machines, or of two boots of one."""

from __future__ import annotations

from functools import partial

import msgspec

from rolemesh_durable.protocol.master.slices import SLICES
from rolemesh_durable.protocol.master.state import JobState, Leave

__all__ = ["by_another_clock"]


def by_another_clock(state: JobState, clock: str, now: float, wall: float) -> None:
    """Convert the times in `state` to the monotonic clock `clock`, which is at `now` when the wall clock is at `wall`.

    If that is another clock, wall times give the time since the newest event, as well as they can; 0 if they go back. A
    time in the future becomes `now`.
    """
    told = partial(_told, same=clock == state.clock, last=state.last, now=now, wall=wall)
    state.attempts = [
        msgspec.structs.replace(each, at=told(each.at), ended_at=told(each.ended_at) if each.outcome else 0.0)
        for each in state.attempts
    ]
    state.failed_at = [told(at) for at in state.failed_at]
    if state.recovery is not None:
        state.recovery.begun = told(state.recovery.begun)
    state.leaving = {node: Leave(told(leave.heard), leave.notice_s) for node, leave in state.leaving.items()}
    for key in state.slices.keys() & SLICES.keys():
        state.slices[key].convert(told)
    state.clock, state.last = clock, (now, wall)


def _told(at: float, most: float = 1e9, *, same: bool, last: tuple[float, float], now: float, wall: float) -> float:
    """Return time `at` on the new clock. The old one was at `last[0]` when the wall clock was at `last[1]`.

    At most `most` seconds by the wall clock count.
    """
    return min(at, now) if same else now - max(0.0, last[0] - at) - min(max(0.0, wall - last[1]), most)
