"""The transport between nodes: zmq over TCP with CurveZMQ. Only peers with the job's client key are accepted (ZAP)."""

from __future__ import annotations

import zmq

from rolemesh_dataplane.auth_monitor import Handshakes
from rolemesh_dataplane.curve import Gate, connect, listen
from rolemesh_dataplane.pieces import LIMIT, PIECE, cut
from rolemesh_dataplane.transports import Inbox, Payload, Sender, Site, Stamp, Transport, TransportError, TransportKeys

__all__ = ["TcpTransport"]


class TcpTransport(Transport):
    """Large values travel in pieces straight from the producer's slot."""

    def open(self, inbox: Inbox, site: Site) -> str:
        """Bind the inbox to a free TCP port of the rank's host, behind CurveZMQ. The ipc address remains."""
        if site.keys is None:
            raise TransportError("tcp edges need the job's keys", where=site.ref.in_words)
        self._context, self._keys = inbox.context, site.keys
        self._gate = Gate(inbox.context, site.keys.client_public)
        self._handshakes = Handshakes(inbox.socket)
        inbox.socket.maxmsgsize = LIMIT
        address = listen(inbox.socket, site.host, site.keys)
        inbox.socket.maxmsgsize = -1
        return address

    def connect(self, address: str) -> Sender:
        """Return a PUSH socket with the job's client key."""
        return _TcpSender(self._context, address, self._keys)

    def refused(self) -> int:
        """Return the number of failed handshakes: see `Handshakes.failed`."""
        return self._handshakes.failed()

    def close(self) -> None:
        """End the ZAP handler."""
        self._handshakes.close()
        self._gate.close()


class _TcpSender(Sender):
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: TransportKeys) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        connect(self._socket, address, keys)

    def send(self, frame: bytes) -> None:
        if len(frame) < PIECE:
            self._socket.send(frame)
        else:
            self._socket.send_multipart(cut([frame]), copy=False)

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        self._socket.send_multipart(cut(payload.frames(stamp)), copy=False)

    def close(self, linger_ms: int) -> None:
        self._socket.close(linger=linger_ms)
