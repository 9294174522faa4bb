"""examples/serve: what its endpoint allows a client, over real sockets; no model has a part in it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import until

pytest.importorskip("uvicorn")

EXAMPLE = Path(__file__).parents[3] / "examples" / "serve"
BIG = 64 << 20
LONG = {"head_s": 60.0, "body_s": 60.0, "stall_s": 60.0}
"""Limits that no test reaches by mistake."""


class App:
    """Answers with the number of bytes that it got, a lot at ``/big``, and at ``/held`` once it is let go."""

    def __init__(self, http_limits: Any, limits: Any) -> None:
        self.http_limits, self.limits = http_limits, limits
        self.go = threading.Event()
        self.ended: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import Request
        from starlette.responses import Response

        request = Request(scope, receive)
        try:
            body = await self.http_limits.whole_body(request, self.limits)
        except self.http_limits.Refused as error:
            await self.http_limits.refusal(error.status, str(error))(scope, receive, send)
            return
        while request.url.path == "/held" and not self.go.is_set():
            await asyncio.sleep(0.01)
        content = bytes(BIG) if request.url.path == "/big" else str(len(body)).encode()
        try:
            await Response(content)(scope, receive, send)
        finally:
            self.ended.append(request.url.path)


class Endpoint:
    """A running server."""

    def __init__(self, http_limits: Any, **limits: Any) -> None:
        allowed = http_limits.Limits(**LONG | limits)
        self.app = App(http_limits, allowed)
        self.admission = http_limits.Admission(self.app, allowed)
        self.server = http_limits.server(self.admission, allowed, "127.0.0.1", 0)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        until(lambda: self.server.started, what="the server listens")
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def ask(self, path: str = "/", body: bytes = b"") -> tuple[int, Any, bytes]:
        """Status, headers and body of the answer."""
        client = HTTPConnection("127.0.0.1", self.port, timeout=30)
        client.request("POST", path, body)
        answer = client.getresponse()
        told = answer.status, answer.headers, answer.read()
        client.close()
        return told

    def connect(self, said: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        client.sendall(said)
        return client

    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def close(self) -> None:
        self.app.go.set()
        self.server.should_exit = self.server.force_exit = True
        self._thread.join(60)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Endpoint]]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import http_limits

    started: list[Endpoint] = []

    def make(**limits: Any) -> Endpoint:
        started.append(Endpoint(http_limits, **limits))
        return started[-1]

    yield make
    for endpoint in started:
        endpoint.close()


def ended(client: socket.socket) -> bytes:
    """Return all that the server sends before it ends the connection."""
    told = b""
    try:
        while data := client.recv(1 << 16):
            told += data
    except ConnectionResetError:
        pass
    return told


def test_a_body_of_the_limit_is_served_and_a_longer_one_is_413(start: Callable[..., Endpoint]) -> None:
    endpoint = start(body=1000)
    assert endpoint.ask(body=bytes(1000))[::2] == (200, b"1000")
    status, _, told = endpoint.ask(body=bytes(1001))
    assert (status, json.loads(told)["error"]["message"]) == (413, "a request may have 1000 bytes")


def test_a_body_without_a_length_is_counted_and_not_kept(start: Callable[..., Endpoint]) -> None:
    endpoint = start(body=1000)
    client = endpoint.connect(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3):
        client.sendall(b"200\r\n" + bytes(0x200) + b"\r\n")
    assert client.recv(100).startswith(b"HTTP/1.1 413 ")
    client.close()


def test_a_request_beyond_those_that_are_answered_is_503_with_a_time_to_come_back(
    start: Callable[..., Endpoint],
) -> None:
    endpoint = start(requests=2)
    held = [endpoint.connect(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n") for _ in range(2)]
    until(lambda: endpoint.admission.running == 2, what="two requests are being answered")
    status, headers, told = endpoint.ask()
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(told)["error"]["message"] == "2 requests are being answered"
    assert endpoint.admission.refused == 1
    endpoint.app.go.set()
    for client in held:
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        client.close()
    until(lambda: endpoint.admission.running == 0, what="none is answered any more")
    assert endpoint.ask()[0] == 200


def test_a_connection_beyond_the_limit_gets_an_error_and_ends(start: Callable[..., Endpoint]) -> None:
    endpoint = start(connections=2)
    kept = [endpoint.connect() for _ in range(2)]
    until(lambda: endpoint.connections() == 2, what="two connections")
    refused = endpoint.connect()
    assert ended(refused).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n")
    for client in (refused, *kept):
        client.close()
    until(lambda: endpoint.connections() == 0, what="no connection")
    assert endpoint.ask()[0] == 200


@pytest.mark.parametrize(
    "said",
    [b"", b"POST / HTTP/1.1\r\nho", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /"],
    ids=["nothing", "half a head", "a request and silence", "half a second request"],
)
def test_a_client_that_sends_no_whole_head_loses_its_connection(start: Callable[..., Endpoint], said: bytes) -> None:
    client = start(head_s=0.3).connect(said)
    told = ended(client)  # or the socket's own time-out raises
    assert told.startswith(b"HTTP/1.1 200 ") == said.startswith(b"GET")
    client.close()


def test_a_client_that_sends_its_body_too_slowly_gets_408(start: Callable[..., Endpoint]) -> None:
    client = start(body_s=0.3).connect(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
    assert client.recv(100).startswith(b"HTTP/1.1 408 ")
    client.close()


def test_a_client_that_does_not_take_its_answer_loses_it(start: Callable[..., Endpoint]) -> None:
    endpoint = start(stall_s=0.3)
    client = endpoint.connect(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n")
    until(lambda: endpoint.app.ended, what="the answer is on its way")
    until(lambda: endpoint.connections() == 0, what="the connection is ended")
    assert len(ended(client)) < BIG
    client.close()


def test_an_answer_may_take_longer_than_a_head(start: Callable[..., Endpoint]) -> None:
    endpoint = start(head_s=0.2)
    client = endpoint.connect(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
    until(lambda: endpoint.admission.running == 1, what="the request is being answered")
    idle = endpoint.connect()
    assert ended(idle) == b""
    endpoint.app.go.set()
    assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
    for each in (idle, client):
        each.close()
