"""Streams of server-sent events: what a page shows is computed once for all its readers, and sent when it changes.

The format is that of the HTML standard, section 9.2 "Server-sent events".
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from rolemesh_view.patience import in_thread

__all__ = ["Live", "Parts"]

log = logging.getLogger("rolemesh_view.live")

PERIOD_S = 1.5
"""Seconds between two looks at what a page shows."""
REST = 5
"""Multiple of the duration of a look for which no other one follows it."""
MOST_STREAMS = 1000
"""Maximum number of open streams. A browser opens at most six to one host, and only for pages that are in sight."""
RETRY_MS = 2000
"""Milliseconds after which a browser connects again."""
OVER: Final = "over"
"""The event after which a stream has no more: the page does not connect again."""
HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


class Parts(NamedTuple):
    """The texts that a page shows, by the names of their events. `over`: they do not change any more."""

    texts: Mapping[str, str]
    over: bool = False


class Live:
    """All open streams. Its methods run in the event loop."""

    def __init__(self) -> None:
        self._channels: dict[Hashable, _Channel] = {}
        self._streams = 0
        self._closed = False

    def close(self) -> None:
        """End all streams, and let no new one begin."""
        self._closed = True
        for channel in self._channels.values():
            channel.wake()

    def stream(self, key: Hashable, compute: Callable[[], Parts], seen: str) -> Response:
        """Return a stream of what `compute` returns, which is called in a thread, once for all streams of `key`.

        `seen`: the id of the last event that the browser has, from a stream before.
        """
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse(f"503: {MOST_STREAMS} pages have live updates already; close some\n", 503)
        return _Stream(self, key, compute, seen)

    async def send(self, key: Hashable, compute: Callable[[], Parts], seen: str, receive: Receive, send: Send) -> None:
        """Send a stream until the browser goes, until nothing changes any more, or until `close`."""
        channel = self._channels.get(key)
        if channel is None or channel.failed:
            channel = self._channels[key] = _Channel(compute)
        self._streams += 1
        news = asyncio.Event()
        news.set()
        channel.readers.add(news)
        gone = asyncio.ensure_future(_gone(receive))
        gone.add_done_callback(lambda _: news.set())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await _body(send, f"retry: {RETRY_MS}\n\n".encode())
            known = dict(part.partition(":")[::2] for part in seen.split(","))
            while not (gone.done() or self._closed):
                await news.wait()
                news.clear()
                for message in channel.news(known):
                    await _body(send, message)
                if channel.over or channel.failed:
                    break
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._streams -= 1
            channel.readers.discard(news)
            if not channel.readers:
                channel.stop()
                if self._channels.get(key) is channel:
                    del self._channels[key]


class _Stream(Response):
    """The answer that is a stream."""

    def __init__(self, live: Live, key: Hashable, compute: Callable[[], Parts], seen: str) -> None:
        super().__init__()
        self._live, self._what = live, (key, compute, seen)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._live.send(*self._what, receive, send)


class _Channel:
    """The texts of one page, for all its readers. A slow reader gets only the latest text: there is no queue."""

    def __init__(self, compute: Callable[[], Parts]) -> None:
        self.readers: set[asyncio.Event] = set()
        """One event per reader. It is set when there may be news."""
        self.over = self.failed = False
        self._latest: dict[str, tuple[str, bytes]] = {}
        self._task = asyncio.ensure_future(self._run(compute))

    def news(self, known: dict[str, str]) -> list[bytes]:
        """Return the messages that a reader lacks, and note them in `known`, which has a digest by part."""
        found = []
        for name, (digest, data) in self._latest.items():
            if known.get(name) != digest:
                known[name] = digest
                ids = ",".join(f"{part}:{known[part]}" for part in self._latest if part in known)
                found.append(b"id: %s\nevent: %s\n%s\n" % (ids.encode(), name.encode(), data))
        return [*found, b"event: %s\ndata:\n\n" % OVER.encode()] if self.over else found

    def wake(self) -> None:
        """Let all readers look for news."""
        for news in self.readers:
            news.set()

    def stop(self) -> None:
        """Compute no more."""
        self._task.cancel()

    async def _run(self, compute: Callable[[], Parts]) -> None:
        try:
            while not self.over:
                began = time.monotonic()
                texts, self.over = await in_thread(compute)
                took = time.monotonic() - began
                latest = {name: _message(text) for name, text in texts.items()}
                if self.over or latest != self._latest:
                    self._latest = latest
                    self.wake()
                await asyncio.sleep(max(PERIOD_S, REST * took))
        except Exception:  # the browser connects again, and a new channel tries again
            log.exception("a page cannot be computed, so its streams end")
            self.failed = True
            self.wake()


def _message(text: str) -> tuple[str, bytes]:
    """Return the digest of a text, and its lines as those of an event."""
    lines = re.split("\r\n|\r|\n", text)
    data = "".join(f"data: {line}\n" for line in lines).encode(errors="replace")
    return hashlib.blake2b(data, digest_size=8).hexdigest(), data


async def _body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _gone(receive: Receive) -> None:
    """Return when the browser has closed the connection."""
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
