"""The transport between ranks on one node: zmq ipc for descriptors and small values, shared-memory slots for large."""

from __future__ import annotations

import zmq

from rolemesh_dataplane.transports import Inbox, Payload, Sender, Site, Stamp, Transport

__all__ = ["ShmTransport"]


class ShmTransport(Transport):
    """Peers push into the rank's ipc inbox, which is in a folder of mode 0700."""

    reach = "node"
    own_sockets = True

    def open(self, inbox: Inbox, site: Site) -> str:
        """Return the address of the inbox, which is an ipc socket already."""
        self._context = inbox.context
        return inbox.address

    def connect(self, address: str) -> Sender:
        """Return a PUSH socket without a high-water mark."""
        return _ShmSender(self._context, address)


class _ShmSender(Sender):
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.connect(address)
        self._send = super(zmq.Socket, self._socket).send  # the sugar above costs as much as the send itself

    def send(self, frame: bytes) -> None:
        self._send(frame)

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        self._send(payload.descriptor(stamp))

    def close(self, linger_ms: int) -> None:
        self._socket.close(linger=linger_ms)
