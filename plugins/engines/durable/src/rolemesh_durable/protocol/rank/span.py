"""A part of a rank's time that is long enough for a line of its own."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["LONG_NS", "Span"]

LONG_NS: Final = 1_000_000
"""Minimum nanoseconds of a span. The totals of a rank (`rolemesh_durable.extensions.totals`) have the rest."""


class Span(NamedTuple):
    """A rank was in one phase from `began` to `ended`, in ns of `time.monotonic_ns`.

    - `phase`: one of the phases of `rolemesh_durable.protocol.rank.page`.
    - `op`: the operator call that ran or that needs the value; -1 for none.
    - `edge`: the edge whose value or credit the rank waited for; -1 for none; below -1 another thing, such as a call
      (`rolemesh_durable.extensions.calls.phases`).
    - `step`: the step of the workload.

    A span that ends while another one goes on, such as a call of a running operator, lies within that one.
    """

    phase: int
    op: int
    edge: int
    step: int
    began: int
    ended: int
