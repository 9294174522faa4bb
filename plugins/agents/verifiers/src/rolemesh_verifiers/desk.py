"""The model's API for verifiers: an HTTP server on the loopback interface. Its answers come from rolemesh."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from rolemesh_agents import Message
from rolemesh_agents.http_log import server_log
from rolemesh_verifiers.messages import completion

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["OVER", "Desk"]

OVER = "context_length_exceeded"
"""The error code that tells a harness of verifiers to end its conversation in good order."""
LONG = "this model's maximum context length is reached, since rolemesh has ended the conversation"
"""The error's text. Some versions of verifiers look for its first words instead of the code."""
SESSION = "X-Session-ID"
"""The header in which verifiers names the trace that a request belongs to."""

Ask = Callable[[Any], Awaitable[Message | None]]
"""Returns the model's turn for the body of a request; None: the conversation is over."""


class Desk:
    """Answers requests by the trace that they belong to."""

    def __init__(self) -> None:
        self.url = ""
        self._traces: dict[str, Ask] = {}

    def open(self, trace: str, ask: Ask) -> None:
        """Answer the requests of this trace with `ask`."""
        self._traces[trace] = ask

    def close(self, trace: str) -> None:
        """Refuse the requests of this trace from now on."""
        self._traces.pop(trace, None)

    async def start(self) -> None:
        """Start the server."""
        from aiohttp import web
        from aiohttp.http_exceptions import HttpProcessingError

        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, logger=server_log(__name__, HttpProcessingError))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        """Stop the server."""
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        from aiohttp import web

        ask = self._traces.get(request.headers.get(SESSION, ""))
        if ask is None:
            return web.json_response({"error": {"message": "no conversation", "code": "unknown"}}, status=404)
        try:
            body = await request.json()
        except (ValueError, RecursionError):  # no JSON, no UTF-8, or brackets too deep
            body = None
        if not isinstance(body, dict):
            error = {"message": "the body must be a JSON object", "type": "invalid_request_error", "code": "no_json"}
            return web.json_response({"error": error}, status=400)
        turn = await ask(body)
        if turn is None:
            error = {"message": LONG, "type": "invalid_request_error", "code": OVER}
            return web.json_response({"error": error}, status=400)
        if body.get("stream"):
            return web.Response(body=_events(turn), content_type="text/event-stream")
        return web.json_response(completion(turn))


def _events(turn: Message) -> bytes:
    """Return a turn as a stream of one piece."""
    whole = completion(turn)
    choice = whole.pop("choices")[0]
    delta = choice["message"]
    for at, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = at
    head = {**whole, "object": "chat.completion.chunk"}
    chunks = [
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]},
    ]
    lines = [json.dumps({**head, "choices": [chunk]}) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
