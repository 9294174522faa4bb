"""Strangers at the door: the connections to a listening socket that never got through CurveZMQ, by its monitor."""

from __future__ import annotations

import struct
import time

import zmq

__all__ = ["Handshakes"]

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_OTHERS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


_EVENT = struct.Struct("=HI")
"""The first frame of what a monitor tells, as zmq_socket_monitor(3) has it: an event and its value, a descriptor."""


class Handshakes:
    """Counts from its construction on, so it is made before the socket is bound. For the socket's thread only.

    zmq tells of a handshake that failed, but not of a connection that never began one (it spoke HTTP, say): that one is
    told apart from a peer that leaves by the numbers of those accepted and of those that succeeded.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._monitor = socket.get_monitor_socket(_FAILED | _OTHERS)
        self._patience_s = float(socket.getsockopt(zmq.HANDSHAKE_IVL)) / 1000
        self._told = self._accepted = self._succeeded = self._failed = 0
        self._open: dict[int, float] = {}
        """By descriptor, since when; how far each has got nobody says."""

    def failed(self) -> int:
        """Handshakes that have failed: unknown client key, wrong server key, no CurveZMQ, hung up half-way.

        A connection that is open may be in the middle of its own, for as long as zmq lets it; so it is not counted.
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
