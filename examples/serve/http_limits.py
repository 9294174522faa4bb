"""Limits of an HTTP endpoint, so that no client can starve the others. It knows no model.

It bounds connections, concurrent requests, bytes of a request and waiting time. A refused client gets a status of HTTP:
408, 413, or 503 with ``Retry-After``. `server` gives it to uvicorn.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

RETRY_S = 1
"""The ``Retry-After`` of a refused client, in seconds."""
NO_ROOM = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Limits(NamedTuple):
    """`connections` and `requests` limit how many are open at once, `body` the bytes of a request.

    `head_s`: seconds in which a connection must send the whole head of a request; `body_s`: seconds until the body is
    there; `stall_s`: seconds in which a client must take some of its answer.
    """

    connections: int = 256
    requests: int = 64
    body: int = 2 << 20
    head_s: float = 10.0
    body_s: float = 30.0
    stall_s: float = 30.0


class Refused(Exception):
    """A refused request: the status, and the reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def refusal(status: int, why: str) -> JSONResponse:
    """Return the response in the form of OpenAI's errors. If the reason may pass, it asks the client to try again."""
    error = {"message": why, "type": "invalid_request_error" if status < 500 else "server_error", "code": status}
    return JSONResponse({"error": error}, status, {"retry-after": str(RETRY_S)} if status == 503 else None)


async def whole_body(request: Request, limits: Limits) -> bytes:
    """Return the request's body. Raises `Refused` if it is too long, or comes too slowly."""
    length = request.headers.get("content-length", "0")
    body = bytearray()
    if not length.isdigit() or int(length) <= limits.body:
        try:
            async with asyncio.timeout(limits.body_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limits.body:
                        break
                else:
                    return bytes(body)
        except TimeoutError:
            raise Refused(408, f"the request's body was not there within {limits.body_s:g} s") from None
    raise Refused(413, f"a request may have {limits.body} bytes")


class Admission:
    """An ASGI application that limits the number of concurrent requests to another one."""

    def __init__(self, app: Any, limits: Limits) -> None:
        self.app, self.most = app, limits.requests
        self.running = self.refused = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.running >= self.most:
            self.refused += 1
            await refusal(503, f"{self.most} requests are being answered")(scope, receive, send)
            return
        self.running += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.running -= 1


class Connection(H11Protocol):
    """A connection that ends when its client is too slow to send a request's head, or to take its answer."""

    def __init__(self, limits: Limits, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._full = self._stalled = False
        self._within: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            self._full = True
            transport.write(NO_ROOM)
            transport.close()
        self._watch()

    def data_received(self, data: bytes) -> None:
        if not self._full:
            super().data_received(data)
            self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._disarm()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = True
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled = False
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._disarm()

    def _watch(self) -> None:
        """Restart the time limit for the client's next action. Bytes that arrive meanwhile do not extend it."""
        answering = self.cycle is not None and not self.cycle.response_complete
        within = self._limits.stall_s if self._stalled else None if answering else self._limits.head_s
        if within != self._within:
            self._disarm()
            if within is not None:
                # Not closed, which would wait until the client has taken what is left.
                self._timer = self.loop.call_later(within, self.transport.abort)
            self._within = within

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._within = None


def server(app: Any, limits: Limits, host: str, port: int) -> uvicorn.Server:
    """Return a server of `app` within `limits`."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        lifespan="off",
        ws="none",
        http=partial(Connection, limits),  # type: ignore[arg-type]
        timeout_keep_alive=int(limits.head_s) or 1,
    )
    return uvicorn.Server(config)
