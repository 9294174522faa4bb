"""The role that answers: ``POST /predict`` with the newest model, while the next one is read."""

import json
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from exports import MANIFEST, Served
from features import keys
from pydantic import BaseModel, Field

from rolemesh import Batch, Broadcast, Workload, operator

SLOW_S = 5.0
"""Seconds after which the server closes the connection of a client that sends or takes nothing."""
MOST_CLIENTS = 64
MOST_BYTES = 1 << 20
READ_S = 5.0


class ServerOptions(BaseModel, extra="forbid"):
    """Options of the role `server`."""

    host: str = Field("127.0.0.1", description="the address to listen on")
    port: int = Field(8765, ge=0, le=65535, description="rank r listens on port + r; 0: on any, which its log names")
    names: list[str] = Field(
        [], description="host names for which it answers, besides addresses and this machine's name"
    )


class Server(Workload):
    """A role with any number of ranks, each with the whole model. Its state is in the folder with the exports."""

    Options = ServerOptions

    def setup(self, ctx):
        self.ctx, self.model = ctx, None
        port = ctx.options.port + ctx.rank if ctx.options.port else 0
        self.http = _Http((ctx.options.host, port), self)
        ctx.log.info("answering on http://%s:%d", *self.http.server_address[:2])
        threading.Thread(target=self.http.serve_forever, args=(0.1,), daemon=True).start()

    @operator(notice=Broadcast())
    def load(self, notice: Batch) -> None:
        """Load the newest model. Requests in progress end with the model with which they began.

        A run that resumes another one repeats the last notice before its folder has an export.
        """
        folder, until, before = notice["folder"][0], time.monotonic() + READ_S, self.model
        while True:
            try:
                self.model = Served.read(folder, before)
                break
            except FileNotFoundError:
                if not Path(folder, MANIFEST).exists():
                    self.ctx.log.info("there is no export in %s yet", folder)
                    return
                # A newer base has come, and what this manifest had named was removed.
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        if before is None or before.names != self.model.names:
            now = time.time()
            self.ctx.metric(export_lag_s=now - float(notice["at"][0]), fresh_s=now - self.model.newest)
        self.ctx.record(served=self.model.step)

    def answer(self, events):
        """Return the step of the model, and a probability for each event."""
        model = self.model  # one for the whole answer, whatever comes meanwhile
        columns = [np.array([int(event[name]) for event in events], np.int64) for name in ("user", "item")]
        columns += [np.array([int(event[name]) for event in events], np.int64) for name in ("segment", "topic")]
        chance = model.predict(keys(*columns)) if events else np.zeros(0)
        return {"step": model.step, "clicks": [float(each) for each in chance]}

    def teardown(self):
        self.http.shutdown()
        self.http.server_close()


class _Http(ThreadingHTTPServer):
    """Serves each client in a thread. The number of threads is limited, and none keeps the rank alive."""

    daemon_threads, block_on_close, request_queue_size = True, False, 128

    def __init__(self, address, role):
        self.role, self._clients = role, threading.BoundedSemaphore(MOST_CLIENTS)
        self._names = {"localhost", socket.gethostname().lower(), *map(str.lower, role.ctx.options.names)}
        super().__init__(address, _Handler)

    def process_request(self, request, client_address):
        if not self._clients.acquire(blocking=False):
            with suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.release()

    def is_ours(self, host):
        """Return whether a `Host` header names this server. A foreign site may let its own name lead here."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name.rstrip(".") in self._names or bool(ip_address(name))
        except ValueError:
            return False

    def handle_error(self, request, client_address):
        """Ignore errors of clients that have gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version, timeout = "HTTP/1.1", SLOW_S

    def parse_request(self):
        if not super().parse_request():
            return False
        if (host := self.headers.get("Host")) is None or self.server.is_ours(host):  # browsers always name one
            return True
        self.close_connection = True
        self._say(421, {"error": "the server does not answer for this host; its option `names` adds one"})
        return False

    def do_GET(self):
        model = self.server.role.model
        self._say(200 if model else 503, {"step": model.step if model else None})

    def do_POST(self):
        said = self.headers.get("Content-Length", "0")
        length = int(said) if said.isdecimal() and len(said) < 16 else None
        if length is None or length > MOST_BYTES:
            self.close_connection = True
            self._say(400 if length is None else 413, {"error": f"Content-Length: at most {MOST_BYTES} bytes"})
            return
        body = self.rfile.read(length)
        if self.path != "/predict":
            self._say(404, {"error": "POST /predict"})
        elif self.server.role.model is None:
            self._say(503, {"error": "there is no model yet"})
        else:
            try:
                found = self.server.role.answer(json.loads(body)["events"])
            except (ValueError, KeyError, TypeError) as error:
                what = '{"events": [{"user": 1, "item": 2, "segment": 3, "topic": 4}]}'
                self._say(400, {"error": f"{error!r}; expected {what}"})
            else:
                self._say(200, found)

    def _say(self, code, content):
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        """Write no line per request."""
