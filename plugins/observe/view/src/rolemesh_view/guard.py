"""A check of host, origin and token of each request, and the rules for browsers on each answer."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolemesh_view.text import shown

__all__ = ["Guard"]

HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with "no-referrer", browsers say no origin when they send a form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses requests without the token (401). A link with ``?token=`` sets a cookie and leads to the bare address.

    It refuses host names that are not in `hosts` (421): a foreign site may let its own name lead to this machine (DNS
    rebinding). Addresses and ``localhost`` are always right. It refuses forms from other sites (403).
    """

    def __init__(self, app: ASGIApp, token: str, cookie: str, hosts: Collection[str] = ()) -> None:
        self._app, self._token, self._cookie = app, token, cookie
        self._hosts = {"localhost", *map(str.lower, hosts)}

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
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _name(f"//{host}")
        if not self._is_ours(name):
            return PlainTextResponse(
                f"421: the viewer does not answer for the host {shown(name, 100)!r}. Open the address that it has "
                f"printed. If a proxy leads here, start it with `rolemesh view --allow-host {shown(name, 100)}`\n",
                421,
            )
        own = origin is None or origin.partition("://")[2] == host or self._is_named(_name(origin))
        if scope["method"] not in ("GET", "HEAD") and not own:
            return PlainTextResponse("403: the form is not one of the viewer's own pages\n", 403)
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

    def _is_named(self, name: str) -> bool:
        return name in self._hosts - {"localhost"}

    def _is_ours(self, name: str) -> bool:
        if name in self._hosts:
            return True
        try:
            return bool(ip_address(name))
        except ValueError:
            return False


def _name(address: str) -> str:
    """Return the host name of an address without its port; "" if it has none."""
    try:
        return (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:
        return ""
