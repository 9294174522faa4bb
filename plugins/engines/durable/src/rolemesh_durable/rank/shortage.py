"""A rank waits when shared memory is full, and shows that on its status page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, monotonic_ns
from typing import Any

from rolemesh_dataplane.shm import NoSharedMemory
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.page import BLOCKED, EDGE, PHASE, SHORT, SINCE_NS, STEP
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["Shortage"]

PATIENCE_S = 30.0
"""Seconds that a rank waits if no commit can free anything: other ranks or other programs may free memory."""
LOOK_S = 0.05
"""Seconds between two attempts."""

_log = logging.getLogger(__name__)


class Shortage:
    """Repeats an action that needs shared memory until there is some.

    A commit lets ranks free what they keep, so the rank waits as long as a commit can come. Meanwhile it answers peers
    and the agent. Call it from the main thread, between two messages.
    """

    def __init__(self, endpoint: Endpoint, status_page: StatusPage) -> None:
        self._endpoint, self._status_page = endpoint, status_page
        self._ports: Ports[Any] | None = None
        self._meter: Meter | None = None

    def attach(self, meter: Meter, ports: Ports[Any]) -> None:
        """Count waits in `meter`, and wait for commits that free what `ports` keep. Both need memory themselves."""
        self._meter, self._ports = meter, ports

    def __call__(self, make: Callable[[], Any]) -> Any:
        """Return what `make` returns. Raise its `NoSharedMemory` if no wait can help, and `Stopping`."""
        try:
            return make()
        except NoSharedMemory as error:
            return self._wait(make, error)

    def _wait(self, make: Callable[[], Any], error: NoSharedMemory) -> Any:
        fields, began = self._status_page.fields, monotonic_ns()
        before = fields[PHASE], fields[EDGE]
        fields[PHASE], fields[EDGE], fields[SINCE_NS], fields[SHORT] = BLOCKED, -1, began, max(1, error.nbytes)
        _log.warning("%s; waiting until memory is freed", error.what)
        ends = monotonic() + PATIENCE_S
        try:
            while True:
                self._answer()
                try:
                    return make()
                except NoSharedMemory:
                    if self._commit_may_come():
                        ends = monotonic() + PATIENCE_S
                    elif monotonic() > ends:
                        raise
        finally:
            now = monotonic_ns()
            fields[PHASE], fields[EDGE], fields[SINCE_NS], fields[SHORT] = *before, now, 0
            if self._meter is not None:
                self._meter.blocked += now - began
                self._meter.span(BLOCKED, -1, began, now)

    def _answer(self) -> None:
        self._endpoint.idle()
        self._endpoint.pump(LOOK_S)
        if self._endpoint.stopping:
            raise Stopping

    def _commit_may_come(self) -> bool:
        ports = self._ports
        if ports is None or not ports.job.retention:
            return False
        return ports.committed < ports.reachable(self._status_page.fields[STEP])
