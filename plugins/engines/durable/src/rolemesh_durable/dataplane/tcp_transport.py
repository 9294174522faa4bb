"""The transport between nodes: zmq over TCP with CurveZMQ; only who has the job's client key is let in (ZAP)."""

from __future__ import annotations

import threading

import zmq
from zmq.utils import z85

from rolemesh.api.transport import Inbox, Payload, Sender, Site, Stamp, Transport, TransportKeys
from rolemesh.errors import TransportError
from rolemesh_durable.dataplane.auth_monitor import Handshakes
from rolemesh_durable.dataplane.curve import connects_with, listens_with

__all__ = ["TcpTransport"]

_ZAP = "inproc://zeromq.zap.01"


class TcpTransport(Transport):
    """Large values travel as multipart frames straight from the producer's slot."""

    def open(self, inbox: Inbox, site: Site) -> str:
        """Bind the inbox to a free TCP port of the rank's host, behind CurveZMQ (the ipc address stays as it is)."""
        if site.keys is None:
            raise TransportError("tcp edges need the job's keys", where=f"role {site.role}, rank {site.rank}")
        self._context, self._keys = inbox.context, site.keys
        self._gate = _Gate(inbox.context, site.keys.client_public)
        socket = inbox.socket
        self._handshakes = Handshakes(socket)
        listens_with(socket, site.keys)
        port = socket.bind_to_random_port(f"tcp://{site.host}")
        return f"tcp://{site.host}:{port}"

    def connect(self, address: str) -> Sender:
        """A PUSH socket with the job's client key."""
        return _TcpSender(self._context, address, self._keys)

    def refused(self) -> int:
        """Handshakes that failed: see `Handshakes.failed`."""
        return self._handshakes.failed()

    def close(self) -> None:
        """End the ZAP handler."""
        self._handshakes.close()
        self._gate.close()


class _TcpSender(Sender):
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: TransportKeys) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        connects_with(self._socket, keys)
        self._socket.connect(address)

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        self._socket.send_multipart(payload.frames(stamp), copy=False)

    def close(self, linger_ms: int) -> None:
        self._socket.close(linger=linger_ms)


class _Gate:
    """Answers ZAP requests (RFC 27) in a thread of its own, so peers get in while an operator computes."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], client_public: str) -> None:
        self._allowed = z85.decode(client_public)
        self._zap: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        stop = f"inproc://gate-{id(self)}"
        self._quit: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._quit.bind(stop)
        self._asked: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._asked.connect(stop)
        self._thread = threading.Thread(target=self._serve, name="rolemesh-zap", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._asked, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._asked in ready:
                break
            request = self._zap.recv_multipart()
            good = len(request) == 7 and request[5] == b"CURVE" and request[6] == self._allowed
            sequence = request[1] if len(request) > 1 else b""
            code, text = (b"200", b"OK") if good else (b"400", b"unknown key")
            self._zap.send_multipart([b"1.0", sequence, code, text, b"", b""])
        self._zap.close(linger=0)
        self._asked.close(linger=0)

    def close(self) -> None:
        self._quit.send(b"")
        self._thread.join()
        self._quit.close(linger=0)
