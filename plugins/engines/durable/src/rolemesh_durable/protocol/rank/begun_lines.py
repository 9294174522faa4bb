"""The line of metrics that a rank continues when the job goes on from a persisted snapshot. Pure.

A snapshot may end in the middle of a line. Each rank's part of the snapshot then has the line as far as it is gathered.
If the role has another number of ranks now, the ranks divide the begun lines of the former ones among themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from rolemesh_runtime.metrics import Metrics, joined

__all__ = ["begun_line"]


def begun_line(read: Callable[[int], Metrics | None], rank: int, before: int, now: int) -> Metrics | None:
    """Return the line that rank `rank` of `now` ranks continues; None if no line had begun.

    ``read(n)`` returns the line that rank `n` of the `before` ranks of the role had begun, or None.
    """
    lines = [line for former in range(rank, before, now) if (line := read(former)) is not None]
    if not lines:
        first = read(0) if before else None
        return Metrics(first.role, first.step, first.steps, 1, [0.0, 0.0, 0.0]) if first is not None else None
    line = joined(lines)
    # A line shows the mean time of the present ranks.
    return replace(line, ranks=1, times=[seconds * now / before for seconds in line.times])
