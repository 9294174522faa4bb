"""The engine's side of a `RankContext`: the protocol, and a port that collects reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias

from rolemesh.api.service import Caller
from rolemesh.errors import RolemeshError

__all__ = ["LocalPort", "RankPort", "Report"]

Report: TypeAlias = tuple[dict[str, list[float]], dict[str, float]]
"""Means as name → [sum, count], and sums by name."""


class RankPort(Caller, Protocol):
    """The engine's side of a `RankContext`: the context passes what a workload asks for on to it.

    An engine implements these methods and those of `Caller`, and hands an object to each
    `RankContext` as `port`. Arguments are checked already.
    """

    @property
    def notes(self) -> MutableMapping[str, Any]:
        """See `RankContext.notes`. The engine presents those of the step that runs."""

    def metric(self, values: Mapping[str, float], item: int | None) -> None:
        """Take quantities to average. `item` is the item in hand, None outside of items."""

    def count(self, values: Mapping[str, float], item: int | None) -> None:
        """Take quantities to add up; `item` as in `metric`."""

    def record(self, values: Mapping[str, Any]) -> None:
        """Take JSON values for the step's line of metrics."""

    def finish(self, reason: str) -> None:
        """See `RankContext.finish`; `reason` is never empty."""

    def progress(self, done: int, total: int) -> bool:
        """See `RankContext.progress`."""


class LocalPort:
    """A port that keeps what the workload reports until an engine, or a test, takes it.

    Engines assign `caller`, `on_progress` and `notes`. Without them the role can call nobody, the
    job is never about to drain, and notes stay until somebody clears them.
    """

    def __init__(self, caller: Caller | None = None) -> None:
        self.caller = caller
        """Carries calls out; None in a role that calls nobody."""
        self.on_progress: Callable[[int, int], bool] = lambda done, total: False
        """Answers `progress`."""
        self.notes: MutableMapping[str, Any] = {}
        """See `RankContext.notes`."""
        self.finishing = ""
        """The reason given to `finish`; "" before."""
        self.clear()

    def clear(self) -> None:
        """Forget what was reported: means, sums, records."""
        self.means: dict[str, list[float]] = {}
        """[sum, count] by name."""
        self.sums: dict[str, float] = {}
        """Sums by name."""
        self.records: dict[str, Any] = {}
        """JSON values by name."""
        self.by_item: dict[int, Report] = {}
        """As `means` and `sums`, by item: reports with an item in hand."""

    def metric(self, values: Mapping[str, float], item: int | None) -> None:
        """See `RankPort`."""
        means = self.means if item is None else self._of(item)[0]
        for name, value in values.items():
            slot = means.setdefault(name, [0.0, 0.0])
            slot[0] += float(value)
            slot[1] += 1.0

    def count(self, values: Mapping[str, float], item: int | None) -> None:
        """See `RankPort`."""
        sums = self.sums if item is None else self._of(item)[1]
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + float(value)

    def record(self, values: Mapping[str, Any]) -> None:
        """See `RankPort`."""
        self.records.update(values)

    def finish(self, reason: str) -> None:
        """See `RankPort`."""
        self.finishing = reason

    def progress(self, done: int, total: int) -> bool:
        """See `RankPort`."""
        return self.on_progress(done, total)

    async def call(self, *args: Any, **named: Any) -> Any:
        """See `Caller`. Raises `RolemeshError` in a role that calls nobody."""
        return await self._caller().call(*args, **named)

    def call_and_wait(self, *args: Any, **named: Any) -> Any:
        """See `Caller`. Raises as `call` does."""
        return self._caller().call_and_wait(*args, **named)

    def session(self, role: str, key: str) -> str:
        """See `Caller`. Raises as `call` does."""
        return self._caller().session(role, key)

    def _of(self, item: int) -> Report:
        return self.by_item.setdefault(item, ({}, {}))

    def _caller(self) -> Caller:
        if self.caller is None:
            remedy = "say in the flow whom the operator calls: calls=[job.<role>]"
            raise RolemeshError("this role calls nobody", remedy=remedy)
        return self.caller
