"""A rank waits when shared memory is full, and shows that on its status page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

from rolemesh_dataplane.shm import NoSharedMemory
from rolemesh_durable.protocol.rank.effects import Waits
from rolemesh_durable.protocol.rank.page import BLOCKED, SHORT, STEP, Fields
from rolemesh_durable.protocol.rank.ports import Ports

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

    def __init__(self, idle: Callable[[], object], waits: Waits, fields: Fields) -> None:
        """`idle` does the rank's idle work, in which it may take a snapshot. `fields` are those of the status page."""
        self._idle, self._waits, self._fields = idle, waits, fields
        self._ports: Ports[Any] | None = None

    def attach(self, ports: Ports[Any]) -> None:
        """Wait for commits that free what `ports` keep. Ports need memory themselves."""
        self._ports = ports

    def __call__(self, make: Callable[[], Any]) -> Any:
        """Return what `make` returns. Raise its `NoSharedMemory` if no wait can help, and `Stopping`."""
        try:
            return make()
        except NoSharedMemory as error:
            return self._wait(make, error)

    def _wait(self, make: Callable[[], Any], error: NoSharedMemory) -> Any:
        made, ends = None, 0.0

        def there() -> bool:
            nonlocal made, ends
            if not ends:  # the rank shows its wait before its idle work
                ends = monotonic() + PATIENCE_S
                return False
            self._idle()
            try:
                made = make()
            except NoSharedMemory:
                if self._commit_may_come():
                    ends = monotonic() + PATIENCE_S
                elif monotonic() > ends:
                    raise
                return False
            return True

        _log.warning("%s; waiting until memory is freed", error.what)
        self._fields[SHORT] = max(1, error.nbytes)
        try:
            self._waits.until(there, BLOCKED, look_s=LOOK_S)
        finally:
            self._fields[SHORT] = 0
        return made

    def _commit_may_come(self) -> bool:
        ports = self._ports
        if ports is None or not ports.job.retention:
            return False
        return ports.committed < ports.reachable(self._fields[STEP])
