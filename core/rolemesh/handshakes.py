"""Strangers at the door: the CurveZMQ handshakes that failed on a listening socket, counted by its monitor."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

__all__ = ["Handshakes"]

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Handshakes:
    """Counts from its construction on, so it is made before the socket is bound. For the socket's thread only."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._monitor = socket.get_monitor_socket(_FAILED)
        self._failed = 0

    def failed(self) -> int:
        """Handshakes that have failed: unknown client key, wrong server key, no CurveZMQ, hung up half-way."""
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._failed += 1
        return self._failed

    def close(self) -> None:
        """End the monitor; the socket still has to be open."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
