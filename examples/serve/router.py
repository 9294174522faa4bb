"""The endpoint: it sends each request to a prefill server, and then with the returned parameters to a decode server.

It only speaks HTTP. vLLM's protocol types and servers define requests and answers. Answers, streams of events and
errors are the decode server's, byte by byte. `http_limits.py` limits the clients, and `own_names.py` refuses web sites.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx
from http_limits import Admission, Limits, Refused, refusal, server, whole_body
from own_names import OwnNames
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from rolemesh import Batch, Broadcast, RankContext, operator

HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"}
FOR_ONE_TOKEN = {"max_tokens": 1, "max_completion_tokens": 1, "stream": False}
ONLY_FOR_THE_ANSWER = ("stream_options", "min_tokens")


class Router:
    """An HTTP server in a thread, in front of both pools."""

    def __init__(
        self,
        ctx: RankContext,
        host: str = "127.0.0.1",
        port: int = 8000,
        patience_s: float = 300,
        answer_s: float = 600,
        limits: Mapping[str, float] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """`patience_s`: seconds for which a request waits for a restarting server; `answer_s`: seconds without a byte
        after which a living server counts as failed; `limits`: fields of `http_limits.Limits`; `names`: host names for
        which it answers, besides addresses, ``localhost`` and this machine's name.
        """
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        self.ctx, self.patience_s = ctx, patience_s
        self.limits = Limits(**(limits or {}))  # type: ignore[arg-type]
        self.types = {"/v1/chat/completions": ChatCompletionRequest, "/v1/completions": CompletionRequest}
        self.prefill: list[str] = []
        self.decode: list[str] = []
        self.turns = itertools.count()
        self.counts = dict.fromkeys(("requests", "prefilled", "retries"), 0)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # As many connections as there are requests, which are limited.
        self.client = httpx.AsyncClient(
            timeout=httpx.Timeout(answer_s, connect=5), limits=httpx.Limits(max_connections=None)
        )
        self.admission = Admission(self.serve, self.limits)
        self.server = server(OwnNames(self.admission, [host, *names]), self.limits, host, port)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    @operator(prefill=Broadcast(), decode=Broadcast())
    def route(self, prefill: Batch, decode: Batch) -> None:
        """Send requests to these servers from now on. A step takes a second."""
        self.prefill, self.decode = list(prefill["url"]), list(decode["url"])
        if self.thread.ident is None:
            self.thread.start()
        time.sleep(1)
        if not self.thread.is_alive():
            raise RuntimeError("the endpoint has ended, perhaps because its port is taken; see this rank's log")
        before, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        refused, self.admission.refused = self.admission.refused, 0
        self.ctx.count(**before, refused=refused)

    def teardown(self) -> None:
        self.server.should_exit = True
        if self.thread.ident is not None:
            self.thread.join(10)

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request, as an ASGI application. If the client goes away, stop work for it."""
        request = Request(scope, receive)
        try:
            body = await whole_body(request, self.limits)
        except ClientDisconnect:
            return
        except Refused as error:
            await refusal(error.status, str(error))(scope, receive, send)
            return
        gone = asyncio.ensure_future(receive())  # all of the request has been received, so this is its end
        reply = asyncio.ensure_future(self.answer(request, body))
        try:
            await asyncio.wait((gone, reply), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not reply.done():
                reply.cancel()
        with suppress(asyncio.CancelledError):
            response, close = await reply
            try:
                await response(scope, receive, send)
            finally:
                await close()

    async def answer(self, request: Request, body: bytes) -> tuple[Response, Callable[[], Awaitable[None]]]:
        """Return the response to a request, and a function to call after it is sent. It prefills completions first."""
        path = request.url.path
        headers = {name: value for name, value in request.headers.items() if name not in HOP}
        self.counts["requests"] += 1
        deadline = time.monotonic() + self.patience_s
        while True:
            turn = next(self.turns)
            try:
                content = await self.prefilled(path, body, headers, turn)
                url = self.decode[turn % len(self.decode)] + path
                outgoing = self.client.build_request(
                    request.method, url, params=request.query_params, content=content, headers=headers
                )
                reply = await self.client.send(outgoing, stream=True)
                break
            except httpx.ReadTimeout:
                return refusal(504, "a server takes too long for this request"), nothing
            except httpx.TransportError:
                # A server is gone; its successor's address comes with one of the next steps. What was prefilled for
                # it may be gone too, so both halves are asked again.
                if time.monotonic() > deadline:
                    return refusal(503, "no server answers"), nothing
                self.counts["retries"] += 1
                await asyncio.sleep(0.5)
        passed = {name: value for name, value in reply.headers.items() if name not in HOP}
        return StreamingResponse(reply.aiter_raw(), reply.status_code, passed), reply.aclose

    async def prefilled(self, path: str, body: bytes, headers: Mapping[str, str], turn: int) -> bytes:
        """Return the request with the transfer params of its prompt's KV cache, if it has one prompt and one answer."""
        if not self.one_answer(path, body):
            return body
        data = json.loads(body)
        first = {name: value for name, value in data.items() if name not in ONLY_FOR_THE_ANSWER}
        first |= FOR_ONE_TOKEN | {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
        if path == "/v1/completions":
            del first["max_completion_tokens"]
        reply = await self.client.post(self.prefill[turn % len(self.prefill)] + path, json=first, headers=headers)
        params = reply.json().get("kv_transfer_params") if reply.status_code == 200 else None
        if params is None:
            return body
        self.counts["prefilled"] += 1
        return json.dumps(data | {"kv_transfer_params": params}).encode()

    def one_answer(self, path: str, body: bytes) -> bool:
        """True if the request has one prompt and one answer, since a cache can be fetched only once."""
        if path not in self.types:
            return False
        try:
            asked = self.types[path].model_validate_json(body)
        except ValueError:
            return False
        prompts = getattr(asked, "prompt", None)
        several = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
        return (asked.n or 1) == 1 and not several


async def nothing() -> None:
    """Do nothing: the response holds nothing to close."""
