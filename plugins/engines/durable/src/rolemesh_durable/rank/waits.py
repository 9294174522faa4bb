"""The waits of a rank's process: it handles messages meanwhile, and the status page and the times show the wait."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.page import EDGE, IDLE, PHASE, SINCE_NS, WAITING
from rolemesh_durable.protocol.rank.span import LONG_NS
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["ProcessWaits"]


class ProcessWaits:
    """`rolemesh_durable.protocol.rank.effects.Waits` of a process."""

    def __init__(self, endpoint: Endpoint, page: StatusPage, meter: Meter) -> None:
        self._endpoint, self._page, self._meter = endpoint, page, meter

    def until(self, ready: Callable[[], object], phase: int, edge: int = -1, *, look_s: float = 0.0) -> None:
        """Return once `ready()` is true. `look_s`: check this often, because no message announces it."""
        if ready():
            return
        fields, meter, endpoint, began = self._page.fields, self._meter, self._endpoint, monotonic_ns()
        before = fields[PHASE], fields[EDGE]
        fields[PHASE], fields[EDGE], fields[SINCE_NS] = phase, edge, began
        while not ready():
            if not look_s:
                endpoint.wait()
                continue
            endpoint.pump(look_s)
            if endpoint.stopping:
                raise Stopping
        now = monotonic_ns()
        if phase == WAITING:
            meter.waiting += now - began
        elif phase == IDLE:
            meter.idling += now - began
        else:
            meter.blocked += now - began
        if now - began >= LONG_NS:
            meter.span(phase, edge, began, now)
        self._page.waited(edge, now - began)
        fields[PHASE], fields[EDGE], fields[SINCE_NS] = *before, now
