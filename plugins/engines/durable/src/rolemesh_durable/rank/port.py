"""The engine's side of a rank's context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from rolemesh.api.port import Report, T
from rolemesh.api.workload import RankContext
from rolemesh_dataplane.lending import Lender
from rolemesh_durable.rank.call_sequence import CallSequence
from rolemesh_runtime.served import ServingPort

__all__ = ["EnginePort", "port_of"]


class EnginePort(ServingPort):
    """The port of a rank. The parts of the rank that serve a workload register here."""

    _wait: Callable[[], None] | None = None

    def __init__(self, lender: Lender | None = None) -> None:
        """`lender` has what the rank lends; None if it sends nothing."""
        self._lender = lender
        self._by_step: dict[int, dict[int, Report]] = {}
        """The reports that have an item, by step and item; step -1: made outside of tasks, in the present step."""
        super().__init__()

    def observe(self, on_progress: Callable[[int, int], bool]) -> None:
        """Let `on_progress(done, total)` answer `RankContext.progress` from now on."""
        self.on_progress = on_progress

    def attend_metrics(self, measured: Sequence[Callable[[Mapping[str, float], int | None], None]]) -> None:
        """Call each of `measured` with the quantities and the item of `RankContext.metric` from now on."""
        self.measured = measured

    def attend_callers(self, wait: Callable[[], None]) -> None:
        """Let `wait()` wait for callers (`RankContext.wait_for_callers`) from now on."""
        self._wait = wait

    def wait_for_callers(self) -> None:
        """See `RankPort`."""
        if self._wait is not None:
            self._wait()

    def lend(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """See `RankPort`."""
        return super().lend(tensors) if self._lender is None else self._lender.lend(tensors)

    def take_finish(self) -> str:
        """Return the reason that the workload gave to `RankContext.finish`, once; "" if it gave none."""
        reason, self.finishing = self.finishing, ""
        return reason

    @property
    def by_item(self) -> dict[int, Report]:
        """The reports by item: in a task those of its step, elsewhere those of the present step."""
        line = CallSequence.present()
        return self._by_step.setdefault(line.step if line is not None else -1, {})

    @by_item.setter
    def by_item(self, reports: dict[int, Report]) -> None:
        self._by_step[-1] = reports

    def take_items(self, step: int) -> dict[int, Report]:
        """Return the workload's reports of `step` that have an item, by item, once."""
        return {**self._by_step.pop(-1, {}), **self._by_step.pop(step, {})}

    def keep(self, notes: MutableMapping[str, Any]) -> None:
        """Make `notes` the `RankContext.notes` from now on."""
        self.notes = notes


def port_of(ctx: RankContext) -> EnginePort:
    """Return the port that this engine handed to the context. Raise `TypeError` for that of another engine."""
    if not isinstance(ctx.port, EnginePort):
        raise TypeError(f"{type(ctx.port).__name__} is the port of another engine")
    return ctx.port
