"""A check of the names by which browsers ask an HTTP server of this machine, against DNS rebinding.

A web site may let its own name lead to this machine. The browser of a person here would then give its pages the answers
of a server without a password. Browsers always send the name, in the header ``Host``, so the server can refuse it.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

__all__ = ["host_name", "is_own"]


def host_name(address: str) -> str:
    """Return the host name of an address such as ``//HOST:PORT`` in small letters; "" if it has none."""
    try:
        return (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_own(name: str, names: Collection[str] = ()) -> bool:
    """Return whether a host name is an address, ``localhost``, the name of this machine, or one of `names`."""
    try:
        return name in {"localhost", socket.gethostname().lower(), *map(str.lower, names)} or bool(ip_address(name))
    except ValueError:
        return False
