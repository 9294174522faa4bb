"""The engine's side of a `RankContext`: the protocol, and a port that collects reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias, TypeVar

from rolemesh.api.service import Caller
from rolemesh.errors import RolemeshError

__all__ = ["LocalPort", "RankPort", "Report"]

T = TypeVar("T")
Report: TypeAlias = tuple[dict[str, list[float]], dict[str, float]]
"""Means as name → [sum, count], and sums by name."""


class RankPort(Caller, Protocol):
    """The engine's side of a `RankContext`: the context passes the workload's requests to it.

    An engine implements these methods and those of `Caller`, and passes an object to each
    `RankContext` as `port`. The context has already checked the arguments.
    """

    @property
    def notes(self) -> MutableMapping[str, Any]:
        """See `RankContext.notes`. The engine returns the notes of the step that runs."""

    def metric(self, values: Mapping[str, float], item: int | None) -> None:
        """Add quantities to average. `item` is the current item, None outside of items."""

    def count(self, values: Mapping[str, float], item: int | None) -> None:
        """Add quantities to sum; `item` as in `metric`."""

    def record(self, values: Mapping[str, Any]) -> None:
        """Add JSON values for the step's line of metrics."""

    def lend(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """See `RankContext.lend`."""

    def finish(self, reason: str) -> None:
        """See `RankContext.finish`; `reason` is never empty."""

    def progress(self, done: int, total: int) -> bool:
        """See `RankContext.progress`."""

    def wait_for_callers(self) -> None:
        """See `RankContext.wait_for_callers`."""


class LocalPort:
    """A port that keeps the reports of the workload until an engine or a test takes them.

    Engines assign `caller`, `on_progress` and `notes`. By default the role cannot call other roles,
    the job never drains, and notes stay until somebody clears them.
    """

    def __init__(self, caller: Caller | None = None) -> None:
        self.caller = caller
        """Sends the calls; None in a role that makes no calls."""
        self.on_progress: Callable[[int, int], bool] = lambda done, total: False
        """Answers `progress`."""
        self.notes: MutableMapping[str, Any] = {}
        """See `RankContext.notes`."""
        self.finishing = ""
        """The reason given to `finish`; "" before."""
        self.clear()

    def clear(self) -> None:
        """Forget all reports: means, sums and records."""
        self.means: dict[str, list[float]] = {}
        """[sum, count] by name."""
        self.sums: dict[str, float] = {}
        """Sums by name."""
        self.records: dict[str, Any] = {}
        """JSON values by name."""
        self.by_item: dict[int, Report] = {}
        """Means and sums, as above, by item; only reports made while an item was processed."""

    def metric(self, values: Mapping[str, float], item: int | None) -> None:
        """See `RankPort`."""
        means = self.means if item is None else self.by_item.setdefault(item, ({}, {}))[0]
        for name, value in values.items():
            slot = means.setdefault(name, [0.0, 0.0])
            slot[:] = slot[0] + float(value), slot[1] + 1.0

    def count(self, values: Mapping[str, float], item: int | None) -> None:
        """See `RankPort`."""
        sums = self.sums if item is None else self.by_item.setdefault(item, ({}, {}))[1]
        sums.update({name: sums.get(name, 0.0) + float(value) for name, value in values.items()})

    def record(self, values: Mapping[str, Any]) -> None:
        """See `RankPort`."""
        self.records.update(values)

    def lend(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """See `RankPort`. They stay where they are."""
        return dict(tensors)

    def finish(self, reason: str) -> None:
        """See `RankPort`."""
        self.finishing = reason

    def progress(self, done: int, total: int) -> bool:
        """See `RankPort`."""
        return self.on_progress(done, total)

    def wait_for_callers(self) -> None:
        """See `RankPort`. Nobody calls, so this returns at once."""

    async def call(self, *args: Any, **named: Any) -> Any:
        """See `Caller`. Raises `RolemeshError` in a role that makes no calls."""
        return await self._caller().call(*args, **named)

    def call_and_wait(self, *args: Any, **named: Any) -> Any:
        """See `Caller`. Raises as `call` does."""
        return self._caller().call_and_wait(*args, **named)

    def session(self, role: str) -> str:
        """See `Caller`. Raises as `call` does."""
        return self._caller().session(role)

    def _caller(self) -> Caller:
        if self.caller is None:
            remedy = "say in the flow whom the operator calls: calls=[job.<role>]"
            raise RolemeshError("this role may call no other role", remedy=remedy)
        return self.caller
