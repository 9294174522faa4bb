"""A check of the token on each request, and the rules for browsers on each answer."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard"]

HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses requests without the token (401). A link with ``?token=`` sets a cookie and leads to the bare address."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        query, headers = QueryParams(scope["query_string"]), Headers(scope=scope)
        given = query.get("token", "")
        if given and self._is_token(given):
            rest = "&".join(
                part for part in scope["query_string"].decode("latin-1").split("&") if not part.startswith("token=")
            )
            path = scope.get("raw_path", b"/").decode("latin-1").partition("?")[0]
            response = RedirectResponse(f"/{path.lstrip('/')}{'?' + rest if rest else ''}", 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return response
        if self._is_token(cookie_parser(headers.get("cookie", "")).get(self._cookie, "")):
            return None
        if self._is_token(headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        return PlainTextResponse("401: open the address that `rolemesh view` has printed; it has the token\n", 401)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())
