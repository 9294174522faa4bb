"""The role that answers: ``POST /predict`` with the newest model, while the next one is read."""

import asyncio
import socket
import threading
import time
from pathlib import Path

import numpy as np
import torch
from aiohttp import web
from features import GIVEN, keys
from pydantic import BaseModel, Field
from trainer import network

from rolemesh import Batch, Broadcast, Workload, operator
from rolemesh_console.hosts import host_name, is_own
from rolemesh_embeddings import Export
from rolemesh_embeddings.exports import MANIFEST

SLOW_S = 5
"""Seconds after which the server closes the connection of a client that sends no whole request, or takes nothing."""
MOST_BYTES = 1 << 20
READ_S = 5.0


class ServerOptions(BaseModel, extra="forbid"):
    """Options of the role `server`."""

    host: str = Field("127.0.0.1", description="the address to listen on")
    port: int = Field(8765, ge=0, le=65535, description="rank r listens on port + r; 0: on any, which its log names")
    names: list[str] = Field(
        [], description="host names for which it answers, besides addresses and this machine's name"
    )


class Predictor:
    """Predicts with exports of a job with this seed."""

    def __init__(self, seed):
        self._rows, self._network = network(seed)
        self._one = threading.Lock()

    def predict(self, export, batch):
        """Return the probability of a click of each row: float32 (rows,). `batch` has the keys of each field."""
        with self._one, torch.no_grad():
            self._rows.load(export.fetch(batch))
            return torch.sigmoid(self._network(batch)).numpy()


class Server(Workload):
    """A role with any number of ranks, each with the whole model. Its state is in the folder with the exports."""

    Options = ServerOptions
    preload = ("torch", "rolemesh_embeddings.deepfm")

    def setup(self, ctx):
        self.ctx, self.model, self.predictor = ctx, None, Predictor(ctx.seed)
        app = web.Application(client_max_size=MOST_BYTES, middlewares=[self.for_own_names])
        app.add_routes([web.get("/", self.state), web.post("/predict", self.predict)])
        self.runner = web.AppRunner(app, access_log=None, handle_signals=False, keepalive_timeout=SLOW_S)
        port = self.options.port + ctx.rank if self.options.port else 0
        self.listening = socket.create_server((self.options.host, port))
        self.listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SLOW_S * 1000)
        ctx.log.info("answering on http://%s:%d", *self.listening.getsockname()[:2])
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self.listen(), self.loop).result()

    async def listen(self):
        await self.runner.setup()
        await web.SockSite(self.runner, self.listening).start()

    @operator(notice=Broadcast(), newest=Broadcast())
    def load(self, notice: Batch, newest: Batch) -> None:
        """Load the newest export. Requests in progress end with the model with which they began.

        A run that resumes another one repeats the last notice before its folder has an export.
        """
        folder, until, before = Path(self.ctx.run_dir, notice["folder"][0]), time.monotonic() + READ_S, self.model
        while True:
            try:
                self.model = Export.read(folder, before)
                break
            except FileNotFoundError:
                if not (folder / MANIFEST).exists():
                    self.ctx.log.info("there is no export in %s yet", folder)
                    return
                # A newer base has come, and what this manifest had named was removed.
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        if before is None or before.names != self.model.names:
            now = time.time()
            self.ctx.metric(
                export_lag_s=now - (folder / MANIFEST).stat().st_mtime, fresh_s=now - float(newest["at"][0])
            )
        self.ctx.record(served=self.model.step)

    def answer(self, events):
        """Return the step of the model, and a probability for each event."""
        model = self.model  # one for the whole answer, whatever comes meanwhile
        columns = (np.array([int(event[name]) for event in events], np.int64) for name in GIVEN)
        chance = self.predictor.predict(model, keys(*columns)) if events else ()
        return {"step": model.step, "clicks": [float(each) for each in chance]}

    @web.middleware
    async def for_own_names(self, request, handler):
        """Refuse browsers that a web site has led here by a name of its own."""
        if is_own(host_name(f"//{request.host}"), [self.options.host, *self.options.names]):
            return await handler(request)
        return refusal(421, "the server does not answer for this host; its option `names` adds one")

    async def state(self, request):
        model = self.model
        return web.json_response({"step": model.step if model else None}, status=200 if model else 503)

    async def predict(self, request):
        if (request.content_length or 0) > MOST_BYTES:
            raise web.HTTPRequestEntityTooLarge(MOST_BYTES, request.content_length)
        if self.model is None:
            return refusal(503, "there is no model yet")
        try:
            async with asyncio.timeout(SLOW_S):
                asked = await request.json()
            return web.json_response(await asyncio.to_thread(self.answer, asked["events"]))
        except TimeoutError:
            return refusal(408, f"the request was not there within {SLOW_S} s")
        except (ValueError, KeyError, TypeError) as error:
            what = '{"events": [{"user": 1, "item": 2, "segment": 3, "topic": 4}]}'
            return refusal(400, f"{error!r}; expected {what}")

    def teardown(self):
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)


def refusal(status, why):
    return web.json_response({"error": why}, status=status)
