"""The connection from a rank to itself."""

from __future__ import annotations

from collections.abc import Callable

from rolemesh_dataplane.transports import Payload, Sender, Stamp

__all__ = ["Loopback"]


class Loopback(Sender):
    """Hands frames to the rank's own endpoint, without a socket."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver

    def send(self, frame: bytes) -> None:
        """See `Sender`."""
        self._deliver(frame)

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        """See `Sender`."""
        self._deliver(payload.descriptor(stamp))

    def close(self, linger_ms: int) -> None:
        """See `Sender`."""
