"""The HTTP server of a rank, on the loopback interface: APIs, keys and desks. It calls no other role."""

from __future__ import annotations

import asyncio
import functools
import hmac
import math
import secrets
import socket
from collections.abc import Mapping
from contextvars import Context
from typing import Any
from weakref import WeakSet

import msgspec
from aiohttp import web

from rolemesh_agents import Reward, Start, ToolCall
from rolemesh_gateway.apis import CHAT, MESSAGES, RESPONSES, Api, error_body, models_body
from rolemesh_gateway.desk import Desk
from rolemesh_gateway.requests import Answer, RefusedError

__all__ = ["Door", "Server"]

BODY_S = 60.0
"""Seconds that a client may take to send the body of a request."""
CLOSE_S = 1.0
"""Seconds for the last answers of a conversation that is over."""
PATHS = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES}


class Door(msgspec.Struct, eq=False):
    """The way of one program to its conversation."""

    number: str
    key: str
    url: str
    """``http://127.0.0.1:PORT/NUMBER``; the base of all paths."""
    desk: Desk
    start: Start
    connections: WeakSet[asyncio.Transport] = msgspec.field(default_factory=WeakSet)
    runner: web.AppRunner | None = None
    """The server of a socket that leads to this conversation only."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables by which clients find the gateway."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_BASE": f"{self.url}/v1",
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.key,
            "ROLEMESH_URL": self.url,
            "ROLEMESH_KEY": self.key,
        }


class Server:
    """Answers the requests of all programs of a rank."""

    def __init__(self, model: str, body_mb: float, waiting: int) -> None:
        self._model = model
        self._most_bytes = int(body_mb * 1e6)
        self._waiting = waiting
        self._doors: dict[str, Door] = {}
        self._opened = 0
        self._runner: web.AppRunner | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._url = ""

    async def start(self) -> None:
        """Begin to listen on a free port, unless the server listens already.

        The server's tasks run in an empty context. Otherwise they would count as tasks of the operator that starts it,
        and the number of connections would change the numbers of its calls.
        """
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            await Context().run(asyncio.ensure_future, self._listen())

    async def stop(self) -> None:
        """Close all connections and the port. It may be called twice, and from another event loop."""
        runner, self._runner = self._runner, None
        if runner is not None and self._loop is asyncio.get_running_loop():
            await Context().run(asyncio.ensure_future, runner.cleanup())
        if self._socket is not None:
            self._socket.close()
        self._loop = None

    def open(self, start: Start, address: str = "") -> Door:
        """Open a way to a new conversation. `address`: where its program finds this server; "": where it listens."""
        self._opened += 1
        number = str(self._opened)
        url = f"{address or self._url}/{number}"
        door = Door(number, f"rm-{secrets.token_urlsafe(24)}", url, Desk(self._waiting), start)
        self._doors[number] = door
        return door

    async def listen(self, door: Door, listener: socket.socket) -> None:
        """Answer the connections of a socket, which leads to this conversation only. It is closed with the door."""
        if door.number not in self._doors:
            listener.close()
            return
        door.runner = await self._serving(listener, door)
        if door.number not in self._doors:
            self._stop(door)

    def close(self, door: Door) -> None:
        """End the requests and the connections of a conversation. It may be called twice."""
        self._doors.pop(door.number, None)
        self._stop(door)
        door.desk.close()
        for transport in list(door.connections):
            # The answers that `close` has made go out first.
            asyncio.get_running_loop().call_later(CLOSE_S, transport.abort)
        door.connections.clear()

    async def _listen(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._runner = await self._serving(self._socket, None)
        self._url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def _serving(self, listener: socket.socket, only: Door | None) -> web.AppRunner:
        app = web.Application(client_max_size=self._most_bytes)
        app.router.add_route("*", "/{number}{path:/.*}", functools.partial(self._answer, only))
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, handle_signals=False, shutdown_timeout=CLOSE_S
        )
        await runner.setup()
        await web.SockSite(runner, listener, backlog=4096).start()
        return runner

    def _stop(self, door: Door) -> None:
        runner, door.runner = door.runner, None
        if runner is not None:
            task = Context().run(asyncio.ensure_future, runner.cleanup())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def _answer(self, only: Door | None, request: web.Request) -> web.StreamResponse:
        anthropic = "anthropic-version" in request.headers or request.match_info["path"] == "/v1/messages"
        try:
            door = self._door(request, only)
            if request.transport is not None:
                door.connections.add(request.transport)
            return await self._route(request, door, anthropic)
        except RefusedError as error:
            headers = {"x-should-retry": "true" if error.retry else "false"}
            return web.json_response(error_body(error, anthropic), status=error.status, headers=headers)

    def _door(self, request: web.Request, only: Door | None) -> Door:
        door = self._doors.get(request.match_info["number"])
        bearer = request.headers.get("Authorization", "")
        key = bearer[7:].strip() if bearer[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
        # One answer for both mistakes, so that a program cannot find out which conversations there are.
        known = door is not None and only in (None, door)
        if door is None or not known or not hmac.compare_digest(door.key.encode(), key.encode("utf-8", "replace")):
            raise RefusedError(401, "this key opens no conversation at this address", code="invalid_api_key")
        return door

    async def _route(self, request: web.Request, door: Door, anthropic: bool) -> web.StreamResponse:
        path, method = request.match_info["path"].rstrip("/"), request.method
        if method == "POST" and path in PATHS:
            return await self._turn(request, door, PATHS[path])
        if method == "POST" and path in ("/reward", "/v1/reward"):
            await door.desk.ask(_reward(await self._body(request)))
            return web.json_response({})
        if method == "POST" and path in ("/call", "/v1/call"):
            seen = await door.desk.ask(_call(await self._body(request)))
            return web.json_response({"content": seen.content, "done": seen.done})
        if method == "GET" and path in ("/start", "/v1/start"):
            tools = [tool.as_function() for tool in door.start.tools]
            return web.json_response({"messages": list(door.start.messages), "tools": tools})
        if method == "GET" and path == "/v1/models":
            return web.json_response(models_body(self._model, anthropic))
        if method == "GET" and path.startswith("/v1/models/"):
            return web.json_response(models_body(path.removeprefix("/v1/models/"), anthropic)["data"][0])
        raise RefusedError(404, f"the gateway does not answer {method} {path or '/'}")

    async def _turn(self, request: web.Request, door: Door, api: Api) -> web.StreamResponse:
        again = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        ask = api.parse(await self._body(request), again)
        answer: Answer = await door.desk.ask(ask)
        if not ask.stream:
            return web.json_response(body=msgspec.json.encode(api.answer(ask, answer)))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for name, value in api.events(ask, answer):
            data = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            await response.write(f"event: {name}\ndata: {data}\n\n".encode() if name else f"data: {data}\n\n".encode())
        await response.write_eof()
        return response

    async def _body(self, request: web.Request) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(BODY_S):
                data = await request.read()
        except web.HTTPRequestEntityTooLarge:
            most = f"{self._most_bytes / 1e6:g} MB"
            raise RefusedError(413, f"the body is longer than {most}", code="request_too_large") from None
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {BODY_S:g} s") from None
        try:
            body = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedError(400, f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise RefusedError(400, "the body must be a JSON object")
        return body


def _reward(body: Mapping[str, Any]) -> Reward:
    value, success, parts = body.get("reward"), body.get("success"), body.get("parts", {})
    if value is None or not _is_number(value):
        raise RefusedError(400, "reward: a finite number is required", param="reward")
    if success is not None and not isinstance(success, bool):
        raise RefusedError(400, "success: true, false or null is required", param="success")
    if not isinstance(parts, dict) or not all(map(_is_number, parts.values())):
        raise RefusedError(400, "parts: an object with finite numbers is required", param="parts")
    return Reward(float(value), {name: float(each) for name, each in parts.items()}, success)


def _call(body: Mapping[str, Any]) -> ToolCall:
    name, arguments = body.get("name"), body.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise RefusedError(400, "name: a text is required; arguments: an object is required")
    return ToolCall(name, arguments, str(body.get("id", "")))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
