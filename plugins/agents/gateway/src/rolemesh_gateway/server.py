"""The HTTP server of a rank, on the loopback interface: APIs, keys and desks. It calls no other role."""

from __future__ import annotations

import asyncio
import functools
import hmac
import math
import secrets
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import Context
from typing import Any
from weakref import WeakSet

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from rolemesh_agents import Reward, Start, ToolCall
from rolemesh_agents.http_log import server_log
from rolemesh_gateway.apis import (
    CHAT,
    MESSAGES,
    RESPONSES,
    Api,
    error_body,
    error_event,
    items_body,
    models_body,
    without,
)
from rolemesh_gateway.bodies import Body
from rolemesh_gateway.desk import Desk
from rolemesh_gateway.requests import Answer, Ask, Count, Find, Kept, RefusedError

__all__ = ["Door", "Server"]

BODY_S = 60.0
"""Seconds that a client may take to send the body of a request."""
CLOSE_S = 1.0
"""Seconds for the last answers of a conversation that is over."""
PING_S = 3.0
"""Seconds of sampling after which a stream begins with a ping, and between pings. Clients may wait for 5 s only."""
LAST_S = 0.05
"""Seconds before the last event of a stream, in which the gateway sees whether the client leaves in its middle."""
HEAD_S = 10.0
"""Seconds after which a connection is closed that has brought no request with a right key."""
STRANGERS = 1024
"""Number of connections in `HEAD_S` from which on the oldest ones without such a request are closed."""
CONNECTIONS = 512
"""Maximum number of open connections of a conversation."""
SMALL, LARGE = 1 << 16, 8
"""Bytes of a body that needs no room, and the number of bodies of the maximum length for which a conversation has room.
The gateway refuses a longer body for which no room is left; requests need theirs until they are answered."""
NOTED = 64
"""Maximum number of parameters in the header that names those without effect."""
PATHS = {"/chat/completions": CHAT, "/responses": RESPONSES, "/messages": MESSAGES}
COUNTS = {"/messages/count_tokens": MESSAGES, "/responses/input_tokens": RESPONSES}
""" "/v1" before a path is optional, and more than one is allowed: clients differ in what they add to a base URL."""
OWN = {"/reward": "POST", "/call": "POST", "/start": "GET", "/models": "GET"}
METHODS = {**dict.fromkeys([*PATHS, *COUNTS], "POST"), **OWN}


class _Listening(msgspec.Struct):
    """A server and the socket where it accepts connections."""

    runner: web.AppRunner
    accepting: asyncio.Server

    async def cleanup(self) -> None:
        self.accepting.close()
        await self.runner.cleanup()


class Door(msgspec.Struct, eq=False):
    """The way of one program to its conversation."""

    number: str
    key: str
    url: str
    """``http://127.0.0.1:PORT/NUMBER``; the base of all paths."""
    desk: Desk
    start: Start
    connections: WeakSet[asyncio.Transport] = msgspec.field(default_factory=WeakSet)
    held: dict[int, int] = msgspec.field(default_factory=dict)
    """The id of a request in work → the bytes of its body, if that needs room."""
    runner: _Listening | None = None
    """The server of a socket that leads to this conversation only."""
    refused: int = 0
    """The number of requests that the gateway has refused."""
    missed: str = ""
    """Why the program's last request for a turn has no answer; "" if it has one."""

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

    def __init__(
        self, model: str, body_mb: float, waiting: int, retry_s: float = 10.0, leave_out: Sequence[str] = ()
    ) -> None:
        """`retry_s`: seconds for which the work on a request goes on after its client has gone away. `leave_out`: types
        of tools that requests lose."""
        self._model = model
        self._retry_s = retry_s
        self._leave_out = leave_out
        self._most_bytes = int(body_mb * 1e6)
        self._waiting = waiting
        self._doors: dict[str, Door] = {}
        self._opened = 0
        self._runner: _Listening | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._strangers: deque[tuple[float, Any]] = deque()
        """The latest connections, the oldest first, with the time of their begin."""
        self._known = WeakSet[asyncio.Transport]()
        """Connections that have brought a right key."""
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
        door = Door(number, f"rm-{secrets.token_urlsafe(24)}", url, Desk(self._waiting, self._retry_s), start)
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

    async def _serving(self, listener: socket.socket, only: Door | None) -> _Listening:
        app = web.Application()
        answer = functools.partial(self._answer, only)
        app.router.add_route("*", "/{number:[^/]*}{path:.*}", answer, expect_handler=self._expected)
        log = server_log(__name__, HttpProcessingError, web.RequestPayloadError)
        runner = web.AppRunner(
            app, access_log=None, logger=log, handler_cancellation=True,
            handle_signals=False, shutdown_timeout=CLOSE_S, auto_decompress=False,
        )  # fmt: skip
        await runner.setup()
        return _Listening(runner, await asyncio.get_running_loop().create_server(
            functools.partial(self._connected, runner), sock=listener, backlog=4096
        ))  # fmt: skip

    def _connected(self, runner: web.AppRunner) -> Any:
        """Return the protocol of a new connection, which has little time to bring a right key."""
        assert runner.server is not None
        protocol, loop = runner.server(), asyncio.get_running_loop()
        if not self._strangers:
            loop.call_later(HEAD_S, self._sweep)
        self._strangers.append((loop.time(), protocol))
        while len(self._strangers) > STRANGERS:
            self._leave()
        return protocol

    def _sweep(self) -> None:
        """Close the connections whose time is over."""
        loop = asyncio.get_running_loop()
        while self._strangers and self._strangers[0][0] + HEAD_S <= loop.time():
            self._leave()
        if self._strangers:
            loop.call_at(self._strangers[0][0] + HEAD_S, self._sweep)

    def _leave(self) -> None:
        """Close the oldest of the latest connections, unless it has brought a right key."""
        # Many connections may begin in one turn of the loop, which makes their transports at its end.
        asyncio.get_running_loop().call_soon(self._end, self._strangers.popleft()[1])

    def _end(self, protocol: Any) -> None:
        transport = protocol.transport
        if transport is not None and transport not in self._known:
            transport.abort()

    def _stop(self, door: Door) -> None:
        runner, door.runner = door.runner, None
        if runner is not None:
            task = Context().run(asyncio.ensure_future, runner.cleanup())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def _expected(self, request: web.Request) -> web.StreamResponse | None:
        """Say that the body may come, or refuse what else the client expects."""
        expected = request.headers.get("Expect", "")
        if expected.lower() != "100-continue":
            reason = f"Expect: {expected[:64]!r} is not known; leave it out, or send 100-continue"
            return _refused(RefusedError(417, reason, param="Expect"), _form(request)[1])
        if request.version >= HttpVersion11:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        return None

    async def _answer(self, only: Door | None, request: web.Request) -> web.StreamResponse:
        path, anthropic = _form(request)
        try:
            door = self._door(request, only)
            self._note(request, door)
            try:
                return await self._route(request, door, path, anthropic)
            finally:
                door.held.pop(id(request), None)
        except RefusedError as error:
            meant = self._doors.get(request.match_info["number"])
            if meant is not None and only in (None, meant):
                meant.refused += 1
                if path in PATHS:
                    meant.missed = f"the gateway refused it: {error.reason}"
            return _refused(error, anthropic)

    def _note(self, request: web.Request, door: Door) -> None:
        transport = request.transport
        if transport is None or transport in door.connections:
            return
        if (
            len(door.connections) >= CONNECTIONS
            and sum(not each.is_closing() for each in door.connections) >= CONNECTIONS
        ):
            reason = f"this conversation has {CONNECTIONS} open connections; close some, or use them again"
            raise RefusedError(429, reason, retry=True)
        self._known.add(transport)
        door.connections.add(transport)

    def _door(self, request: web.Request, only: Door | None) -> Door:
        door = self._doors.get(request.match_info["number"])
        bearer = request.headers.get("Authorization", "")
        key = bearer[7:].strip() if bearer[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
        # One answer for both mistakes, so that a program cannot find out which conversations there are.
        known = door is not None and only in (None, door)
        if door is None or not known or not hmac.compare_digest(door.key.encode(), key.encode("utf-8", "replace")):
            raise RefusedError(401, "this key opens no conversation at this address", code="invalid_api_key")
        return door

    async def _route(self, request: web.Request, door: Door, path: str, anthropic: bool) -> web.StreamResponse:
        method = request.method
        if method != METHODS.get(path, method):
            raise RefusedError(405, f"the gateway answers {METHODS[path]} at {path}, not {method}")
        if path in PATHS:
            return await self._turn(request, door, PATHS[path])
        if path in COUNTS:
            ask = self._parsed(COUNTS[path], {"max_tokens": 1, "model": "", **await self._body(request, door)}, False)
            told = {} if path == "/messages/count_tokens" else {"object": "response.input_tokens"}
            return web.json_response({**told, "input_tokens": await door.desk.ask(Count(ask))})
        if path == "/reward":
            await door.desk.ask(_reward(await self._body(request, door)))
            return web.json_response({})
        if path == "/call":
            seen = await door.desk.ask(_call(await self._body(request, door)))
            return web.json_response({"content": seen.content, "done": seen.done})
        if path == "/start":
            tools = [tool.as_function() for tool in door.start.tools]
            return web.json_response({"messages": list(door.start.messages), "tools": tools})
        if path == "/models":
            return web.json_response(models_body(self._model, anthropic))
        if method == "GET" and path.startswith("/models/"):
            return web.json_response(models_body(path.removeprefix("/models/"), anthropic)["data"][0])
        if path.startswith("/responses/"):
            return await self._kept(request, door, path.removeprefix("/responses/"))
        raise _unknown(request)

    async def _kept(self, request: web.Request, door: Door, path: str) -> web.StreamResponse:
        """Read or forget an answer of the Responses API."""
        method, (name, _, rest) = request.method, path.partition("/")
        asked = (method, rest)
        if asked not in (("GET", ""), ("DELETE", ""), ("GET", "input_items"), ("POST", "cancel")):
            raise _unknown(request)
        if request.query.get("stream", "false").lower() not in ("false", "0"):
            raise RefusedError(400, "stream: the gateway streams an answer only once, when it is made", param="stream")
        kept: Kept | None = await door.desk.ask(Find(name, forget=method == "DELETE"))
        if kept is None or not name.startswith("resp_"):
            raise RefusedError(404, f"there is no answer {name!r}; the gateway keeps the last 64 of a conversation")
        if method == "DELETE":
            return web.json_response({"id": name, "object": "response", "deleted": True})
        if rest == "cancel":
            raise RefusedError(400, f"the answer {name!r} is complete; only one in the background can be cancelled")
        if rest == "input_items":
            limit, order = request.query.get("limit", "20"), request.query.get("order", "desc")
            if not limit.isdecimal() or not 1 <= int(limit) <= 100:
                raise RefusedError(400, "limit: a number from 1 to 100 is required", param="limit")
            return web.json_response(items_body(kept, request.query.get("after", ""), int(limit), order != "asc"))
        return _encoded(RESPONSES.answer(kept.ask, kept.answer), kept.answer)

    async def _turn(self, request: web.Request, door: Door, api: Api) -> web.StreamResponse:
        again = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        door.missed = "the program left before it"
        ask = self._parsed(api, await self._body(request, door), again)
        if ask.stream:
            return await self._stream(request, door, api, ask)
        answer: Answer = await door.desk.ask(ask)
        door.missed = ""
        return _encoded(api.answer(ask, answer), answer)

    def _parsed(self, api: Api, body: Mapping[str, Any], again: bool) -> Ask:
        offered = body.get("tools")
        if not self._leave_out or not isinstance(offered, list):
            return api.parse(body, again)
        tools, left = without(offered, self._leave_out)
        ask = api.parse({**body, "tools": tools}, again)
        return msgspec.structs.replace(ask, unknown=[*ask.unknown, *(f"tools[].{each}" for each in left)])

    async def _stream(self, request: web.Request, door: Door, api: Api, ask: Ask) -> web.StreamResponse:
        """Stream a turn. If its sampling takes long, the stream begins with pings, so that the client still waits."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        waits = asyncio.ensure_future(door.desk.ask(ask))
        try:
            while not (await asyncio.wait([waits], timeout=PING_S))[0]:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(api.ping.encode())
        except BaseException:
            waits.cancel()
            raise
        try:
            answer: Answer = waits.result()
            door.missed = ""
        except RefusedError as error:
            if not response.prepared:
                raise
            door.refused, door.missed = door.refused + 1, f"the gateway refused it: {error.reason}"
            await response.write(_event(*error_event(error, api)))
            await response.write_eof()
            return response
        try:
            if not response.prepared:
                response.headers.update(_noted(answer))
                await response.prepare(request)
            *events, last = api.events(ask, answer)
            for name, value in events:
                await response.write(_event(name, value))
            await asyncio.sleep(LAST_S)
            await response.write(_event(*last))
            await response.write_eof()
        except BaseException:
            door.desk.lost(ask, answer)
            raise
        return response

    async def _body(self, request: web.Request, door: Door) -> Mapping[str, Any]:
        body = Body(request.headers.get("Content-Encoding", ""), self._most_bytes)
        # Not `request.read()`: an open connection would hold the body until its next request.
        try:
            async with asyncio.timeout(BODY_S):
                async for chunk in request.content.iter_any():
                    body.add(chunk)
                    self._hold(request, door, len(body))
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {BODY_S:g} s") from None
        except (web.RequestPayloadError, HttpProcessingError) as error:
            told = " ".join(str(error).split())[:200]
            raise RefusedError(400, f"the body is not encoded as its head says: {told}") from None
        return body.value()

    def _hold(self, request: web.Request, door: Door, size: int) -> None:
        """Count the bytes of a body, of which `size` have arrived."""
        if size <= SMALL:
            return
        door.held[id(request)] = size
        if sum(door.held.values()) > LARGE * self._most_bytes:
            room = f"{LARGE * self._most_bytes / 1e6:g} MB"
            reason = f"the requests of this conversation that wait for answers have {room}; send this one after them"
            raise RefusedError(429, reason, retry=True)


def _form(request: web.Request) -> tuple[str, bool]:
    """Return the path that a request means, and whether its client speaks Anthropic's API."""
    path = request.match_info["path"].rstrip("/")
    while path.startswith("/v1/"):
        path = path[3:]
    return path, "anthropic-version" in request.headers or path.startswith("/messages")


def _refused(error: RefusedError, anthropic: bool) -> web.Response:
    headers = {"x-should-retry": "true" if error.retry else "false"}
    return web.json_response(error_body(error, anthropic), status=error.status, headers=headers)


def _unknown(request: web.Request) -> RefusedError:
    served = ", ".join(f"/v1{each}" for each in (*PATHS, *COUNTS, "/models"))
    asked = f"{request.method} {request.match_info['path']}"
    return RefusedError(404, f"the gateway does not answer {asked}; it has {served}")


def _encoded(body: Mapping[str, Any], answer: Answer) -> web.Response:
    return web.json_response(body=msgspec.json.encode(body), headers=_noted(answer))


def _noted(answer: Answer) -> dict[str, str]:
    """Return the header that names the parameters without effect."""
    names = [each[:64] for each in answer.ignored if each.isascii() and each.isprintable()][:NOTED]
    return {"x-rolemesh-ignored": ", ".join(names)} if names else {}


def _event(name: str, value: Any) -> bytes:
    data = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"event: {name}\ndata: {data}\n\n".encode() if name else f"data: {data}\n\n".encode()


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
