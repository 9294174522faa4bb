"""What a rank does when shared memory is full: it says so on its status page and waits for what will free some."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, monotonic_ns
from typing import Any

from rolemesh_durable.dataplane.shm import NoSharedMemory
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.page import BLOCKED, EDGE, PHASE, SHORT, SINCE_NS, STEP
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["Shortage"]

PATIENCE_S = 30.0
"""How long a rank waits where no commit can free anything: for other ranks, and for whoever else uses the memory."""
LOOK_S = 0.05

_log = logging.getLogger(__name__)


class Shortage:
    """Calls what needs shared memory until there is some.

    A commit lets ranks free what they keep, so it waits as long as one can come. To be asked from the main thread,
    anywhere between two messages: it answers peers and the agent meanwhile.
    """

    def __init__(self, endpoint: Endpoint, status_page: StatusPage) -> None:
        self._endpoint, self._status_page = endpoint, status_page
        self.ports: Ports[Any] | None = None
        """What the rank sends, once it can."""
        self.meter: Meter | None = None

    def __call__(self, make: Callable[[], Any]) -> Any:
        """What `make` returns. Raises its `NoSharedMemory` if there is nothing left to wait for, and `Stopping`."""
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
            if self.meter is not None:
                self.meter.blocked += now - began

    def _answer(self) -> None:
        self._endpoint.idle()
        self._endpoint.pump(LOOK_S)
        if self._endpoint.stopping:
            raise Stopping

    def _commit_may_come(self) -> bool:
        ports = self.ports
        if ports is None or not ports.job.retention:
            return False
        return ports.committed < ports.reachable(self._status_page.fields[STEP])
