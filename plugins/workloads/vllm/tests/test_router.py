"""examples/serve's router in front of servers that answer, hang and are gone; no engine has a part in it."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.e2e.harness import until

from rolemesh import Batch, RankContext

EXAMPLE = Path(__file__).parents[4] / "examples" / "serve"


class Server(BaseHTTPRequestHandler):
    """Echoes what it is sent, and never answers at ``/hang``."""

    protocol_version = "HTTP/1.1"
    hanging = threading.Semaphore(0)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/hang":
            self.hanging.release()
            self.rfile.read()  # until the router hangs up
            return
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

    def send(self, path: str, body: bytes = b"") -> HTTPConnection:
        client = HTTPConnection("127.0.0.1", self.port, timeout=60)
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
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            made.append(Router(RankContext(options=None), port=port, **arguments))
            running = Running(made[-1], port, f"http://127.0.0.1:{server.server_address[1]}")
            servers = Batch({"url": [running.url]})
            made[-1].route(servers, servers)
            until(lambda: made[-1].server.started, what="the router listens")
            return running

        yield make
    for router in made:
        router.server.force_exit = True
        router.teardown()
    server.shutdown()
    server.server_close()
    for name in ("router", "http_limits", "own_names"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def named(make: Callable[..., Running]) -> Running:
    """A router that has a name of its own."""
    return make(names=["models.example.org"])


def test_a_server_that_hangs_is_504_and_one_that_is_gone_is_503(make: Callable[..., Running]) -> None:
    running = make(answer_s=0.3, patience_s=0.3)
    client = running.send("/echo", b"as it is")
    assert client.getresponse().read() == b"as it is"
    answer = running.send("/hang").getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (504, 504)
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        running.router.decode = [f"http://127.0.0.1:{gone.getsockname()[1]}"]
        answer = running.send("/echo").getresponse()
    assert (answer.status, answer.getheader("retry-after")) == (503, "1")


def test_a_client_that_goes_away_makes_room_for_another(make: Callable[..., Running]) -> None:
    running = make(limits={"requests": 1, "body": 100})
    client = running.send("/hang")
    assert Server.hanging.acquire(timeout=60)
    answer = running.send("/echo").getresponse()
    assert (answer.status, answer.getheader("retry-after")) == (503, "1")
    client.close()
    until(lambda: running.router.admission.running == 0, what="there is room")
    assert running.send("/echo", bytes(100)).getresponse().status == 200
    until(lambda: running.router.admission.running == 0, what="the answer has been sent to its end")
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
    client = HTTPConnection("127.0.0.1", named.port, timeout=60)
    client.request("POST", "/echo", b"", {name: value})
    answer = client.getresponse()
    assert (answer.status, json.loads(answer.read() or "{}").get("error", {}).get("code", 200)) == (status, status)
    client.close()
