"""The endpoint: it sends each request to a prefill server, and then with the returned parameters to a decode server.

It only speaks HTTP. vLLM's protocol types and servers define requests and answers. Answers, streams of events and
errors are the decode server's, byte by byte. aiohttp bounds what one client may take.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import httpx
from aiohttp import web

from rolemesh import Batch, Broadcast, RankContext, operator
from rolemesh_console.hosts import host_name, is_own

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
        requests: int = 64,
        body: int = 2 << 20,
        head_s: float = 10,
        body_s: float = 30,
        stall_s: float = 30,
        names: Sequence[str] = (),
    ) -> None:
        """`patience_s`: seconds for which a request waits for a restarting server; `answer_s`: seconds without a byte
        after which a living server counts as failed; `requests`: how many are answered at once; `body`: bytes of a
        request; `head_s`, `body_s`: seconds in which a client must send both parts of a request; `stall_s`: seconds in
        which it must take some of its answer; `names`: host names for which the router answers, besides addresses,
        ``localhost`` and this machine's name.
        """
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        self.ctx, self.patience_s, self.requests, self.body_s = ctx, patience_s, requests, body_s
        self.names, self.running = [host, *names], 0
        self.types = {"/v1/chat/completions": ChatCompletionRequest, "/v1/completions": CompletionRequest}
        self.prefill: list[str] = []
        self.decode: list[str] = []
        self.turns = itertools.count()
        self.counts = dict.fromkeys(("requests", "prefilled", "retries", "refused"), 0)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # As many connections as there are requests, which are limited.
        self.client = httpx.AsyncClient(
            timeout=httpx.Timeout(answer_s, connect=5), limits=httpx.Limits(max_connections=None)
        )
        app = web.Application(client_max_size=body)
        app.router.add_route("*", "/{path:.*}", self.serve)
        self.runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=head_s,
            shutdown_timeout=5,
        )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listening = socket.create_server((host, port), family=family)
        self.listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_s * 1000))
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    @operator(prefill=Broadcast(), decode=Broadcast())
    def route(self, prefill: Batch, decode: Batch) -> None:
        """Send requests to these servers from now on. A step takes a second."""
        self.prefill, self.decode = list(prefill["url"]), list(decode["url"])
        if not self.runner.sites:
            self.run(self.listen())
        time.sleep(1)
        before, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        self.ctx.count(**before)

    def teardown(self) -> None:
        self.run(self.runner.cleanup())
        self.loop.call_soon_threadsafe(self.loop.stop)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the server's thread, and wait for its end."""
        asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def listen(self) -> None:
        await self.runner.setup()
        await web.SockSite(self.runner, self.listening).start()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, or refuse it. If the client goes away, aiohttp cancels this."""
        own = "the endpoint does not answer for this {}; its argument `names` adds one"
        if not is_own(host_name(f"//{request.host}"), self.names):
            return refusal(421, own.format("host"))
        if not is_own(host_name(request.headers.get("Origin", "//localhost")), self.names):
            return refusal(403, own.format("site's pages"))
        if self.running >= self.requests:
            self.counts["refused"] += 1
            return refusal(503, f"{self.requests} requests are being answered")
        self.running += 1
        try:
            async with asyncio.timeout(self.body_s):
                body = await request.read()
            return await self.answer(request, body)
        except web.HTTPRequestEntityTooLarge as error:
            return refusal(413, error.text or "")
        except TimeoutError:
            return refusal(408, f"the request's body was not there within {self.body_s:g} s")
        finally:
            self.running -= 1

    async def answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """Prefill a completion, and pass on the decode server's answer."""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        self.counts["requests"] += 1
        deadline = time.monotonic() + self.patience_s
        while True:
            turn = next(self.turns)
            try:
                content = await self.prefilled(request.path, body, headers, turn)
                url = self.decode[turn % len(self.decode)] + request.path_qs
                outgoing = self.client.build_request(request.method, url, content=content, headers=headers)
                reply = await self.client.send(outgoing, stream=True)
                break
            except httpx.ReadTimeout:
                return refusal(504, "a server takes too long for this request")
            except httpx.TransportError:
                # A server is gone; its successor's address comes with one of the next steps. What was prefilled for
                # it may be gone too, so both halves are asked again.
                if time.monotonic() > deadline:
                    return refusal(503, "no server answers")
                self.counts["retries"] += 1
                await asyncio.sleep(0.5)
        try:
            passed = {name: value for name, value in reply.headers.items() if name not in HOP}
            response = web.StreamResponse(status=reply.status_code, headers=passed)
            await response.prepare(request)
            async for chunk in reply.aiter_raw():
                await response.write(chunk)
            return response
        finally:
            await reply.aclose()

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


def refusal(status: int, why: str) -> web.Response:
    """Return the response in the form of OpenAI's errors. If the reason may pass, it asks the client to try again."""
    error = {"message": why, "type": "invalid_request_error" if status < 500 else "server_error", "code": status}
    return web.json_response({"error": error}, status=status, headers={"Retry-After": "1"} if status == 503 else None)
