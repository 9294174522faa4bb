"""The master's control socket. It answers every client from memory, and survives whatever a client sends.

The master remembers the latest events and lines of metrics. An answer has at most a page of them, so that no client
costs the master more than a few milliseconds, however far behind it is. A client reads older ones from the run's files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Union

import msgspec
import zmq

from rolemesh.api.observer import Event, JobStatus, StepMetrics
from rolemesh_dataplane.curve import Gate, listen, new_keys
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.control import client as client
from rolemesh_durable.malformed import UNREADABLE, Dropped
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.shell import Answer

__all__ = ["MOST_RECENT", "PAGE_BYTES", "PAGE_EVENTS", "PAGE_LINES", "Answers", "forget_old"]

PAGE_EVENTS = 512
PAGE_LINES = 2048
PAGE_BYTES = 4 << 20
"""Maximum bytes of each kind in an answer, which has at least one of a kind if there is one."""
RECENT, RECENT_S, MOST_RECENT = 4096, 1.0, 16384
"""The lines that the master remembers for its clients: the latest `RECENT`, or all of the last `RECENT_S` seconds.

They are at most `MOST_RECENT`.
"""
AT_ONCE = 64
"""Maximum number of requests that the master answers before its next turn."""
QUEUED = 8
"""Maximum number of answers that wait for a client that does not read; more are dropped."""
FRAMES = 4
"""Maximum frames of a request: the client's identity, an envelope of at most two frames, and the request."""


class _Page(msgspec.Struct, frozen=True, tag="Update"):
    """An `Update` whose events and lines are encoded already, so their sizes are known."""

    status: JobStatus
    events: tuple[msgspec.Raw, ...]
    lines: tuple[msgspec.Raw, ...]
    event: int
    step: int


class Answers:
    """Serves the control socket at `endpoint`, and with a `host` one at a free TCP port for other machines with `keys`.

    Not thread-safe: `serve` is called from the master's loop. `status` returns the present status. `events` and `lines`
    return what the master remembers, oldest first. Requests go to `put` as events of the machine; those of extensions
    go to `others`, by their types. The sockets are ROUTER sockets: they keep no state per client that a client could
    block, and drop answers that no client takes.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        host: str = "",
        *,
        status: Callable[[], JobStatus],
        events: Callable[[], deque[Event]],
        lines: Callable[[], deque[StepMetrics]],
        put: Callable[[e.Event], None],
        others: Mapping[type, Answer],
    ) -> None:
        self._status, self._events, self._lines, self._put = status, events, lines, put
        self._others = others
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Union[(client.Request, *others)]).decode
        self._drop = Dropped("the master's control socket")
        self.sockets = [_router(context)]
        self.sockets[0].bind(endpoint)
        self.keys: TransportKeys | None = None
        self.remote = ""
        self._gate: Gate | None = None
        if host:
            self.keys = new_keys()
            self._gate = Gate(context, self.keys.client_public)
            far = _router(context)
            self.remote = listen(far, host, self.keys)
            self.sockets.append(far)

    def serve(self, at_once: int = AT_ONCE) -> None:
        """Answer waiting clients, but no more than `at_once`, so that the master's turn does not wait for long."""
        for socket in self.sockets:
            self._serve(socket, at_once)

    def _serve(self, socket: zmq.Socket[bytes], at_once: int) -> None:
        for _ in range(at_once):
            try:
                identity, *frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not frames or len(frames) >= FRAMES:
                self._drop(f"a message of {len(frames)} frames")
                continue
            *envelope, request = frames
            with suppress(zmq.Again, zmq.ZMQError):  # the client has gone
                socket.send_multipart([identity, *envelope, self._answer(request)], zmq.NOBLOCK)

    def _answer(self, data: bytes) -> bytes:
        try:
            request = self._decode(data)
        except UNREADABLE as error:
            self._drop(error)
            return self._encode(client.Refused(f"this is no question to a master: {error}"))
        match request:
            case client.Watch(event=event, step=step, owner=owner):
                if owner:
                    self._put(e.OwnerSeen())
                return self._page(event, step)
            case client.StopJob(reason=reason):
                self._put(e.StopAsked(reason))
            case client.FinishJob(reason=reason):
                self._put(e.FinishAsked(reason))
            case client.Detach():
                self._put(e.Disown())
            case _:
                if why := self._others[type(request)](request):
                    return self._encode(client.Refused(why))
        return self._page(None, None)

    def _page(self, event: int | None, step: int | None) -> bytes:
        """Return the status and the first page after `event` and `step`; None leaves out events or lines."""
        events, lines = self._events(), self._lines()
        newest = events[-1].seq if events else 0
        written = lines[-1].step if lines else -1
        later = _after(events, event) if event is not None else ()
        more = _beyond(lines, step) if step is not None else ()
        page = _Page(
            self._status(), self._bounded(later, PAGE_EVENTS), self._bounded(more, PAGE_LINES), newest, written
        )
        return self._encode(page)

    def _bounded(self, items: Iterable[Any], count: int) -> tuple[msgspec.Raw, ...]:
        found: list[msgspec.Raw] = []
        size = 0
        for item in islice(items, count):
            encoded = self._encode(item)
            size += len(encoded)
            if found and size > PAGE_BYTES:
                break
            found.append(msgspec.Raw(encoded))
        return tuple(found)

    def close(self) -> None:
        """Close the socket; answers that are on their way may take 0.2 s to leave."""
        for socket in self.sockets:
            socket.close(linger=200)
        if self._gate is not None:
            self._gate.close()


def forget_old(lines: deque[StepMetrics]) -> None:
    """Drop the lines that the master does not remember."""
    while len(lines) > RECENT and lines[0].time < lines[-1].time - RECENT_S:
        lines.popleft()


def _router(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.MAXMSGSIZE, client.REQUEST_BYTES)
    socket.setsockopt(zmq.SNDHWM, QUEUED)
    return socket


def _after(events: deque[Event], seq: int) -> Iterator[Event]:
    """Return the events after number `seq`. Numbers have no gaps, so they give the positions."""
    first = events[0].seq if events else 0
    return islice(events, min(max(0, seq + 1 - first), len(events)), None)


def _beyond(lines: deque[StepMetrics], step: int) -> Iterator[StepMetrics]:
    """Return the lines after `step`, searched from the newest, because most watchers lack only a few.

    Return none to a watcher that lacks older ones: it reads those from the file first, and would drop these.
    """
    count = 0
    if lines and lines[0].step - lines[0].steps > step:
        return iter(())
    for line in reversed(lines):
        if line.step <= step:
            break
        count += 1
    return islice(lines, len(lines) - count, None)
