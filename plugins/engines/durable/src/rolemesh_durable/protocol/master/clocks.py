"""Times of one master for the next, which may go by another clock: that of another machine, or of another boot."""

from __future__ import annotations

from functools import partial

import msgspec

from rolemesh_durable.protocol.master.state import JobState, Leave

__all__ = ["by_another_clock"]


def by_another_clock(state: JobState, clock: str, now: float, wall: float) -> None:
    """Tell the times in `state` by the monotonic clock `clock`, which is at `now` when the clock on the wall is at
    `wall`.

    Where that is another one, wall times tell how long ago something was, as well as they can; what seems to be still
    to come counts as now.
    """
    told = partial(_told, same=clock == state.clock, last=state.last, now=now, wall=wall)
    state.attempts = [
        msgspec.structs.replace(each, at=told(each.at), ended_at=told(each.ended_at) if each.outcome else 0.0)
        for each in state.attempts
    ]
    state.failed_at = [told(at) for at in state.failed_at]
    if state.recovery is not None:
        state.recovery.begun = told(state.recovery.begun)
    for node, leave in state.leaving.items():
        state.leaving[node] = Leave(told(leave.heard), leave.notice_s)
    state.clock, state.last = clock, (now, wall)


def _told(at: float, *, same: bool, last: tuple[float, float], now: float, wall: float) -> float:
    """What was at `at` of a clock that was at `last[0]` when the wall's was at `last[1]`, by one that is at `now`."""
    return min(at, now) if same else now - max(0.0, wall - last[1] + last[0] - at)
