"""A check of the names by which clients ask an HTTP endpoint, against DNS rebinding and pages of other sites.

A web site may let its own name lead to this machine. The browser of a person here would then give its pages the answers
of every server without a password. Browsers always send the name, so `OwnNames` refuses those that are not its own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from http_limits import refusal
from starlette.datastructures import Headers


class OwnNames:
    """An ASGI application that passes requests for its own names on to another one.

    Its own names are addresses, ``localhost``, the name of this machine, and `names`. It refuses other hosts (421), and
    requests of pages from other hosts (403). A program that sends no ``Host`` is no browser.
    """

    def __init__(self, app: Any, names: Iterable[str] = ()) -> None:
        self.app = app
        self.names = {"localhost", socket.gethostname().lower(), *map(str.lower, names)}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = Headers(scope=scope) if scope["type"] in ("http", "websocket") else {}
        status, why = 0, ""
        if not self.is_own(f"//{headers.get('host', 'localhost')}"):
            status, why = 421, "the endpoint does not answer for this host; its argument `names` adds one"
        elif not self.is_own(headers.get("origin", "//localhost")):
            status, why = 403, "the endpoint does not answer pages of this site; its argument `names` adds one"
        if not status:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": why})
        else:
            await refusal(status, why)(scope, receive, send)

    def is_own(self, address: str) -> bool:
        """Return whether the host of an address is one of its own names. A page without one has the origin ``null``."""
        try:
            name = (urlsplit(address).hostname or "").rstrip(".")
            return name in self.names or bool(ip_address(name))
        except ValueError:
            return False
