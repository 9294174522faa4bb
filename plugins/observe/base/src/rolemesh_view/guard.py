"""A check of host, origin and token of each request, and the rules for browsers on each answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolemesh_console.hosts import host_name, is_own
from rolemesh_view.text import shown

__all__ = ["Access", "Guard"]

HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with "no-referrer", browsers say no origin when they send a form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Access:
    """The secrets of one viewer.

    A link with a token opens the viewer once, so a token in a list of processes or in a history is of no use later. The
    browser gets a cookie instead. Forms have a secret of their own, so a page shows neither token nor cookie.
    `tokens`: those of links that exist from the beginning.
    """

    def __init__(self, *tokens: str) -> None:
        self.cookie, self.form = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self._links: dict[str, Callable[[], object]] = {token: lambda: None for token in tokens}

    def link(self, used: Callable[[], object]) -> str:
        """Return the token of a new link; `used` runs when somebody opens it."""
        token = secrets.token_urlsafe(24)
        self._links[token] = used
        return token

    def admits(self, token: str) -> bool:
        """Whether `token` belongs to a link that nobody has used."""
        return any(same(token, each) for each in self._links)

    def use(self, token: str) -> bool:
        """Take the token of a link; False if it is none, or was used before."""
        if not self.admits(token):
            return False
        self._links.pop(token)()
        return True


def same(given: str, secret: str) -> bool:
    """Compare in a time that says nothing about `secret`."""
    return secrets.compare_digest(given.encode(errors="replace"), secret.encode())


class Guard:
    """Refuses requests without a secret of `access` (401). A link's token sets a cookie and leads to the bare address.

    It refuses host names that are not in `hosts` (421): a foreign site may let its own name lead to this machine (DNS
    rebinding). Addresses and ``localhost`` are always right. It refuses forms from other sites (403).
    """

    def __init__(self, app: ASGIApp, access: Access, cookie: str, hosts: Collection[str] = ()) -> None:
        self._app, self._access, self._cookie = app, access, cookie
        self._hosts = {*map(str.lower, hosts)}

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
        name = host_name(f"//{host}")
        if not is_own(name, self._hosts):
            return PlainTextResponse(
                f"421: the viewer does not answer for the host {shown(name, 100)!r}. Open the address that it has "
                f"printed. If a proxy leads here, start it with `rolemesh view --allow-host {shown(name, 100)}`\n",
                421,
            )
        own = origin is None or origin.partition("://")[2] == host or host_name(origin) in self._hosts
        if scope["method"] not in ("GET", "HEAD") and not own:
            told = f"comes from {shown(origin or '', 100)!r}, and is not one of the viewer's own pages"
            remedy = "If a proxy leads here, start the viewer with --allow-host and the proxy's name"
            return PlainTextResponse(f"403: the form {told}. {remedy}\n", 403)
        inside = same(cookie_parser(headers.get("cookie", "")).get(self._cookie, ""), self._access.cookie)
        given = query.get("token", "")
        if given and (inside or (scope["method"] == "GET" and self._access.use(given))):
            rest = "&".join(
                part for part in scope["query_string"].decode("latin-1").split("&") if not part.startswith("token=")
            )
            # The same page. The address is relative, since a proxy may show the viewer below a prefix.
            last = scope.get("raw_path", b"/").decode("latin-1").partition("?")[0].rpartition("/")[2]
            response = RedirectResponse(f"./{last}{'?' + rest if rest else ''}", 303)
            # "lax": a browser that comes from the private file of `rolemesh view` sends a strict cookie to no redirect.
            response.set_cookie(self._cookie, self._access.cookie, httponly=True, samesite="lax")
            return response
        if inside or self._access.admits(headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        return PlainTextResponse(
            "401: open the newest address that `rolemesh view` has printed. Each address opens the viewer once. If "
            "somebody else has used yours, end the viewer and start it again.\n",
            401,
        )
