"""The reports of services: they travel with the answer, and count where the call was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

from rolemesh.api.port import LocalPort
from rolemesh.api.workload import RankContext

__all__ = ["Report", "Served", "ServingPort", "count_here", "split_name"]

Report: TypeAlias = tuple[Literal["metric", "count", "record"], dict[str, Any]]
"""The name of a method of `RankContext`, and its arguments."""
MARK = "\0"
"""Separates the label of a service from the name of its metric, in the reports of a caller."""


class Served:
    """The reports that one call of a service makes before its answer."""

    __slots__ = ("_open", "_reports")

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._open = True

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Take the reports that are made inside, and in tasks that begin there, until `take`."""
        token = _SERVED.set(self)
        try:
            yield
        finally:
            _SERVED.reset(token)

    def add(self, kind: Literal["metric", "count", "record"], values: Mapping[str, Any]) -> bool:
        """Add a report. Return False if the call has its answer already."""
        if self._open:
            self._reports.append((kind, dict(values)))
        return self._open

    def take(self) -> Sequence[Report]:
        """Return the reports so far. Later ones belong to the rank that serves."""
        self._open = False
        return self._reports


_SERVED: ContextVar[Served | None] = ContextVar("served", default=None)


class ServingPort(LocalPort):
    """A port that keeps the reports of a running service apart from those of the rank."""

    measured: Sequence[Callable[[Mapping[str, float], int | None], None]] = ()
    """The functions that get the quantities and the item of each `metric`, too."""

    def metric(self, values: Mapping[str, float], item: int | None) -> None:
        """See `RankPort`."""
        call = _SERVED.get()
        if call is None or not call.add("metric", {name: float(value) for name, value in values.items()}):
            LocalPort.metric(self, values, item)  # without super(): operators may report each row
        for measured in self.measured:
            measured(values, item)

    def count(self, values: Mapping[str, float], item: int | None) -> None:
        """See `RankPort`."""
        call = _SERVED.get()
        if call is None or not call.add("count", {name: float(value) for name, value in values.items()}):
            super().count(values, item)

    def record(self, values: Mapping[str, Any]) -> None:
        """See `RankPort`."""
        call = _SERVED.get()
        if call is None or not call.add("record", values):
            super().record(values)

    def reported(self) -> list[str]:
        """Return the names of all reports that nobody has taken."""
        items = [name for means, sums in self.by_item.values() for name in (*means, *sums)]
        return [split_name(name, "")[1] for name in (*self.means, *self.sums, *self.records, *items)]

    @contextmanager
    def without_reports(self) -> Iterator[None]:
        """Drop the reports that are made inside, and keep those from before."""
        before = self.means, self.sums, self.records
        self.clear()
        try:
            yield
        finally:
            self.clear()
            self.means, self.sums, self.records = before


def count_here(ctx: RankContext, label: str, reports: Sequence[Report]) -> None:
    """Report on `ctx` what the service `label` (``role.method``) has reported, under the service's label."""
    for kind, values in reports:
        if kind == "record":
            ctx.record(**values)
            continue
        named = {f"{label}{MARK}{name}": value for name, value in values.items()}
        (ctx.metric if kind == "metric" else ctx.count)(**named)


def split_name(name: str, label: str) -> tuple[str, str]:
    """Return the label and the name of a metric that operator call `label` reported as `name`."""
    service, _, rest = name.rpartition(MARK)
    return service or label, rest
