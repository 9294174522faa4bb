"""CurveZMQ with the job's keys: a listener accepts only peers with the keys, and a client verifies the listener."""

from __future__ import annotations

import threading

import zmq
from zmq.utils import z85

from rolemesh_dataplane.transports import TransportKeys

__all__ = ["ZAP_DOMAIN", "Gate", "connect", "listen", "new_keys"]

ZAP_DOMAIN = "rolemesh"
_ZAP = "inproc://zeromq.zap.01"


def new_keys() -> TransportKeys:
    """Return new CurveZMQ key pairs."""
    pairs = (*zmq.curve_keypair(), *zmq.curve_keypair())
    return TransportKeys(*(key.decode() for key in pairs))


def listen(socket: zmq.Socket[bytes], host: str, keys: TransportKeys) -> str:
    """Bind the socket to a free TCP port of `host`, a name or an address, and return the address for `connect`. The
    context's authenticator requires the client's key from each peer."""
    socket.curve_server = True
    socket.curve_secretkey = keys.server_secret.encode()
    socket.curve_publickey = keys.server_public.encode()
    socket.zap_domain = ZAP_DOMAIN.encode()
    socket.ipv6 = ":" in host
    address = f"tcp://[{host}]" if socket.ipv6 else f"tcp://{host}"
    return f"{address}:{socket.bind_to_random_port(address)}"


def connect(socket: zmq.Socket[bytes], address: str, keys: TransportKeys) -> None:
    """Connect the socket to an address that `listen` returned."""
    socket.curve_serverkey = keys.server_public.encode()
    socket.curve_publickey = keys.client_public.encode()
    socket.curve_secretkey = keys.client_secret.encode()
    socket.ipv6 = "[" in address
    socket.connect(address)


class Gate:
    """Accepts peers that have a client's key. It answers a context's ZAP requests (RFC 27) in a thread of its own, so
    peers can connect while an operator computes."""

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
        """End the thread."""
        self._quit.send(b"")
        self._thread.join()
        self._quit.close(linger=0)
