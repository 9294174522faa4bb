"""CurveZMQ with the job's keys: a listener accepts only peers with the keys, and a client verifies the listener."""

from __future__ import annotations

import zmq
from zmq.auth.thread import ThreadAuthenticator

from rolemesh_dataplane.transports import TransportKeys

__all__ = ["ZAP_DOMAIN", "Gate", "connect", "listen", "new_keys"]

ZAP_DOMAIN = "rolemesh"


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
        self._allowed = client_public.encode()
        self._thread = ThreadAuthenticator(context)
        self._thread.start()
        self._thread.configure_curve_callback(ZAP_DOMAIN, self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Return True if a peer with this public key (z85) may connect. The authenticator calls it."""
        return key == self._allowed

    def close(self) -> None:
        """End the thread."""
        self._thread.stop()
