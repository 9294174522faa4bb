"""examples/serve's router in front of servers that answer, hang and are gone; no engine has a part in it."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.waiting import HANG_S, until

from rolemesh import Batch, RankContext

EXAMPLE = Path(__file__).parents[4] / "examples" / "serve"
BIG = 64 << 20


class Server(BaseHTTPRequestHandler):
    """Echoes what it is sent, a lot at ``/big``, late at ``/late``, and never answers at ``/hang``."""

    protocol_version = "HTTP/1.1"
    hanging, asked_for_much = threading.Semaphore(0), threading.Semaphore(0)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/hang":
            self.hanging.release()
            self.rfile.read()  # until the router hangs up
            return
        if self.path == "/late":
            time.sleep(1)
        if self.path == "/big":
            self.asked_for_much.release()
            body = bytes(BIG)
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Running(NamedTuple):
    """A router and the server behind it."""

    router: Any
    port: int
    url: str

    def connect(self, said: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)
        client.sendall(said)
        return client

    def send(self, path: str, body: bytes = b"") -> HTTPConnection:
        client = HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        client.request("POST", path, body)
        return client


@pytest.fixture(scope="module")
def make() -> Iterator[Callable[..., Running]]:
    """A router with these arguments."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever).start()
    made: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        from router import Router

        def make(**arguments: Any) -> Running:
            made.append(Router(RankContext(), port=0, **arguments))
            port = made[-1].listening.getsockname()[1]
            running = Running(made[-1], port, f"http://127.0.0.1:{server.server_address[1]}")
            servers = Batch({"url": [running.url]})
            made[-1].route(servers, servers)
            return running

        yield make
    for router in made:
        router.teardown()
    server.shutdown()
    server.server_close()
    sys.modules.pop("router", None)


@pytest.fixture(scope="module")
def named(make: Callable[..., Running]) -> Running:
    """A router that has a name of its own."""
    return make(names=["models.example.org"])


def test_a_server_that_hangs_is_504_and_one_that_is_gone_is_503(make: Callable[..., Running]) -> None:
    answer = make(answer_s=0.3).send("/hang").getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (504, 504)
    running = make(patience_s=0.3)
    assert running.send("/echo", b"as it is").getresponse().read() == b"as it is"
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        running.router.decode = [f"http://127.0.0.1:{gone.getsockname()[1]}"]
        answer = running.send("/echo").getresponse()
    assert (answer.status, answer.getheader("retry-after")) == (503, "1")


def test_a_client_that_goes_away_makes_room_for_another(make: Callable[..., Running]) -> None:
    running = make(requests=1, body=100)
    client = running.send("/hang")
    assert Server.hanging.acquire(timeout=HANG_S)
    answer = running.send("/echo").getresponse()
    assert (answer.status, answer.getheader("retry-after")) == (503, "1")
    client.close()
    until(lambda: running.router.running == 0, what="there is room")
    assert running.send("/echo", bytes(100)).getresponse().status == 200
    until(lambda: running.router.running == 0, what="the answer has been sent to its end")
    assert running.send("/echo", bytes(101)).getresponse().status == 413


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("host", "localhost:8000", 200),
        ("host", "Models.example.org.", 200),
        ("host", "[::1]:8000", 200),
        ("host", "elsewhere.example.org", 421),
        ("host", "a]b[", 421),
        ("origin", "http://127.0.0.1:3000", 200),
        ("origin", "https://models.example.org", 200),
        ("origin", "https://elsewhere.example.org", 403),
        ("origin", "null", 403),
    ],
)
def test_foreign_hosts_and_pages_of_other_sites_are_refused(named: Running, name: str, value: str, status: int) -> None:
    """A site may let its own name lead to this machine, or ask the endpoint from its page."""
    client = HTTPConnection("127.0.0.1", named.port, timeout=HANG_S)
    client.request("POST", "/echo", b"", {name: value})
    answer = client.getresponse()
    assert (answer.status, json.loads(answer.read() or "{}").get("error", {}).get("code", 200)) == (status, status)
    client.close()


@pytest.fixture(scope="module")
def strict(make: Callable[..., Running]) -> Running:
    """A router that waits for no client."""
    return make(head_s=0.3, body_s=0.3, stall_s=0.3)


def ended(client: socket.socket) -> bytes:
    """Return all that the router sends before it ends the connection."""
    told = b""
    try:
        while data := client.recv(1 << 16):
            told += data
    except ConnectionResetError:
        pass
    client.close()
    return told


@pytest.mark.parametrize(
    "said",
    [b"", b"POST / HTTP/1.1\r\nho", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /"],
    ids=["nothing", "half a head", "a request and silence", "half a second request"],
)
def test_a_client_that_sends_no_whole_head_loses_its_connection(strict: Running, said: bytes) -> None:
    told = ended(strict.connect(said))  # or the socket's own time-out raises
    assert told.startswith(b"HTTP/1.1 421 ") == said.startswith(b"GET")


def test_a_body_without_a_length_is_counted_and_not_kept(make: Callable[..., Running]) -> None:
    client = make(body=1000).connect(b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3):
        client.sendall(b"200\r\n" + bytes(0x200) + b"\r\n")
    assert client.recv(100).startswith(b"HTTP/1.1 413 ")
    client.close()


def test_a_client_that_sends_its_body_too_slowly_gets_408(strict: Running) -> None:
    client = strict.connect(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nabc")
    assert client.recv(100).startswith(b"HTTP/1.1 408 ")
    client.close()


def test_a_client_that_does_not_take_its_answer_loses_it(strict: Running) -> None:
    client = strict.connect(b"POST /big HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
    assert Server.asked_for_much.acquire(timeout=HANG_S)
    until(lambda: strict.router.running == 0, what="the connection is ended")
    assert len(ended(client)) < BIG


def test_an_answer_may_take_longer_than_a_head_and_a_body(strict: Running) -> None:
    said = b"POST /late HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx"
    told = ended(strict.connect(said))
    assert (told[:13], b"\r\nx\r\n" in told) == (b"HTTP/1.1 200 ", True)
