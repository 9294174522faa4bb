"""The queue at which all messages to a rank arrive, whatever the transport."""

from __future__ import annotations

from pathlib import Path

import zmq

from rolemesh_dataplane import transports

__all__ = ["Inbox"]


class Inbox(transports.Inbox):
    """The queue at which all messages to a rank arrive."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: str) -> None:
        self.context = context
        self.socket: zmq.Socket[bytes] = context.socket(zmq.PULL)
        self.socket.set_hwm(0)
        self.path = path
        self.address = f"ipc://{path}"
        self.socket.bind(self.address)
        self._inside = ""

    def pusher(self) -> zmq.Socket[bytes]:
        """Return a socket that delivers frames from inside this process. Not thread-safe: one per thread of a
        transport."""
        if not self._inside:
            self._inside = f"inproc://inbox-{id(self)}"
            self.socket.bind(self._inside)
        pusher: zmq.Socket[bytes] = self.context.socket(zmq.PUSH)
        pusher.set_hwm(0)
        pusher.connect(self._inside)
        return pusher

    def close(self) -> None:
        """Remove the socket."""
        self.socket.close(linger=0)
        Path(self.path).unlink(missing_ok=True)
