"""CurveZMQ with the job's keys: who listens lets in only who has them, and who connects knows whom it talks to."""

from __future__ import annotations

import zmq

from rolemesh.api.transport import TransportKeys

__all__ = ["ZAP_DOMAIN", "connects_with", "listens_with"]

ZAP_DOMAIN = "rolemesh"


def listens_with(socket: zmq.Socket[bytes], keys: TransportKeys) -> None:
    """Before the socket is bound: whoever connects is asked for the client's key, by the context's authenticator."""
    socket.curve_server = True
    socket.curve_secretkey = keys.server_secret.encode()
    socket.curve_publickey = keys.server_public.encode()
    socket.zap_domain = ZAP_DOMAIN.encode()


def connects_with(socket: zmq.Socket[bytes], keys: TransportKeys) -> None:
    """Before the socket is connected."""
    socket.curve_serverkey = keys.server_public.encode()
    socket.curve_publickey = keys.client_public.encode()
    socket.curve_secretkey = keys.client_secret.encode()
