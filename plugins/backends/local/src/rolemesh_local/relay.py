"""The agent's connection to its master, whichever process it is. It is a thread, because a zmq socket belongs to
one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import zmq

__all__ = ["Relay"]

RECONNECT_MS = 20
KEPT = 64
"""Maximum number of messages that wait for a missing master; it gets the latest ones."""


class Relay:
    """Sends and receives whole messages. If nobody takes them, the oldest are dropped first."""

    def __init__(self, address: str, identity: bytes) -> None:
        self._context = zmq.Context()
        self._address, self._identity = address, identity
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.set_hwm(0)
        self._outbox.bind("inproc://out")

    def send(self, message: bytes) -> None:
        """Send a message. Only the agent's thread may call this."""
        self._outbox.send(message)

    def start(self, deliver: Callable[[bytes], None]) -> None:
        """Pass the master's messages to `deliver`, in this object's own thread."""
        self._thread = threading.Thread(target=self._run, args=(deliver,), name="link", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when the last message is sent, or nobody takes it."""
        self._outbox.send(b"")
        self._thread.join()
        self._outbox.close(linger=0)
        self._context.term()

    def _run(self, deliver: Callable[[bytes], None]) -> None:
        link = self._context.socket(zmq.DEALER)
        link.setsockopt(zmq.IDENTITY, self._identity)
        # Nothing is queued for a master that is not there: it would be told old news first.
        link.setsockopt(zmq.IMMEDIATE, 1)
        link.setsockopt(zmq.SNDHWM, KEPT)
        link.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        link.connect(self._address)
        inbox = self._context.socket(zmq.PULL)
        inbox.set_hwm(0)
        inbox.connect("inproc://out")
        poller = zmq.Poller()
        poller.register(inbox, zmq.POLLIN)
        waiting: deque[bytes] = deque(maxlen=KEPT)
        over = False
        while not over or waiting:
            poller.register(link, zmq.POLLIN | (zmq.POLLOUT if waiting else 0))
            ready = dict(poller.poll(2000 if over else None))
            if over and not ready:
                break
            if inbox in ready:
                message = inbox.recv()
                over = not message
                if message:
                    waiting.append(message)
            if ready.get(link, 0) & zmq.POLLIN:
                deliver(link.recv())
            if ready.get(link, 0) & zmq.POLLOUT:
                link.send(waiting.popleft())
        inbox.close(linger=0)
        link.close(linger=2000)
