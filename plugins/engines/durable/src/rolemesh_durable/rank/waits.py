"""The waits of a rank's process: it handles messages meanwhile, and the status page and the times show the wait."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from rolemesh_durable.protocol.rank.effects import Stopping, Waits
from rolemesh_durable.protocol.rank.page import BLOCKED, IDLE, SAVING
from rolemesh_durable.rank.endpoint import IDLE_MS, Endpoint
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["ProcessWaits"]


class ProcessWaits(Waits):
    """`rolemesh_durable.protocol.rank.effects.Waits` of a process."""

    def __init__(self, endpoint: Endpoint, page: StatusPage, meter: Meter | None = None) -> None:
        super().__init__(page.fields, monotonic_ns)
        self._endpoint, self._page, self._meter = endpoint, page, meter

    def count(self, meter: Meter) -> None:
        """Count the times in `meter` from now on."""
        self._meter = meter

    def until(
        self, ready: Callable[[], object], phase: int, edge: int = -1, *, look_s: float = 0.0, deadline: int = 0
    ) -> bool:
        """Return True once `ready()` is true, or False at `deadline`. `look_s`: check this often."""
        if ready():
            return True
        endpoint, stay = self._endpoint, self.enter(phase, edge)
        try:
            while not ready():
                if not (look_s or deadline):
                    endpoint.wait()
                    continue
                left_s = (deadline - monotonic_ns()) * 1e-9 if deadline else look_s
                if left_s <= 0:
                    return False
                endpoint.pump(min(left_s, look_s or IDLE_MS / 1000))
                if endpoint.stopping:
                    raise Stopping
        finally:
            self.leave(stay)
        return True

    @property
    def stopping(self) -> bool:
        """True once every wait raises `Stopping`."""
        return self._endpoint.stopping

    def look(self) -> None:
        """Handle the messages that have come. Raises `Stopping`."""
        self._endpoint.flush()
        self._endpoint.pump()
        if self._endpoint.stopping:
            raise Stopping

    def spent(self, phase: int, edge: int, began: int, ended: int, own: int) -> None:
        """Count a phase that has ended."""
        if (meter := self._meter) is not None:
            if phase == IDLE:
                meter.idling += ended - began
            elif phase == SAVING:
                meter.saving += ended - began
            elif phase == BLOCKED:
                meter.blocked += own
            else:
                meter.waiting += own
            meter.span(phase, edge, began, ended)
        self._page.waited(edge, ended - began)
