"""Count the connections to a listening socket that fail CurveZMQ's handshake, by the socket's monitor."""

from __future__ import annotations

import struct
import time

import zmq

__all__ = ["Handshakes"]

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_OTHERS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


_EVENT = struct.Struct("=HI")
"""The first frame of a monitor's message, as in zmq_socket_monitor(3): an event and its value, a descriptor."""


class Handshakes:
    """Counts from its construction on, so create it before the socket is bound. Only for the socket's thread.

    zmq reports a failed handshake, but not a connection that never began one (that spoke HTTP, for example). The
    difference between accepted and successful connections tells such a connection from a peer that leaves.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._monitor = socket.get_monitor_socket(_FAILED | _OTHERS)
        self._patience_s = float(socket.getsockopt(zmq.HANDSHAKE_IVL)) / 1000
        self._told = self._accepted = self._succeeded = self._failed = 0
        self._open: dict[int, float] = {}
        """Descriptor → time of the connection. Its progress is unknown."""

    def failed(self) -> int:
        """Return the number of failed handshakes: unknown client key, wrong server key, no CurveZMQ, connection closed
        half-way.

        An open connection may be in the middle of its handshake, as long as zmq allows, so it is not counted.
        """
        while self._monitor.poll(0):
            event, value = _EVENT.unpack(self._monitor.recv_multipart()[0])
            self._take(event, value)
        begun = time.monotonic() - self._patience_s
        undecided = sum(since >= begun for since in self._open.values())
        self._failed = max(self._failed, self._told, self._accepted - self._succeeded - undecided)
        return self._failed

    def _take(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._accepted += 1
            self._open[value] = time.monotonic()
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._succeeded += 1
        elif event == zmq.EVENT_DISCONNECTED:
            self._open.pop(value, None)
        else:
            self._told += 1

    def close(self) -> None:
        """End the monitor; the socket still has to be open."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
