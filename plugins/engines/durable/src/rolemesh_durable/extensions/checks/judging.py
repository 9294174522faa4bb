"""Judges whether a node is fit for ranks, by the measurements there and on other nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from rolemesh_durable.extensions.checks.messages import Measured, Measurements

__all__ = ["Limits", "unfit"]


class Limits(msgspec.Struct, frozen=True):
    """The limits that a check's numbers must keep; see `rolemesh_durable.checks.CheckOptions`."""

    check: str
    at_least: dict[str, float] = {}
    slower: float | None = None

    @classmethod
    def of(cls, check: str, options: Mapping[str, Any]) -> Limits:
        """Return the limits in a check's options."""
        return cls(check, options.get("at_least", {}), options.get("slower"))


def unfit(limits: Iterable[Limits], here: Measurements, others: Sequence[Measurements]) -> str:
    """Return why a node must not be used; "" if it may. `others` are other nodes, fit or not."""
    found = {measured.check: measured for measured in here}
    return "; ".join(text for limit in limits if (text := _fails(limit, found.get(limit.check), others)))


def _fails(limit: Limits, here: Measured | None, others: Sequence[Measurements]) -> str:
    if here is None or here.error:
        return f"check {limit.check} failed: {here.error if here else 'it was not run'}"
    for name, least in limit.at_least.items():
        if not (value := here.values.get(name, float("-inf"))) >= least:
            told = f"{value:.4g}" if name in here.values else "not measured"
            return f"check {limit.check}: {name} is {told}, and must be at least {least:g}"
    for name, value in here.values.items() if limit.slower else ():
        theirs = [m.values[name] for node in others for m in node if m.check == limit.check and name in m.values]
        if theirs and not value >= (usual := median(theirs)) / (limit.slower or 1.0):
            who = "the other node" if len(theirs) == 1 else f"the median of the other {len(theirs)} nodes"
            return f"check {limit.check}: {name} is {value:.4g}, and {usual:.4g} on {who}"
    return ""
