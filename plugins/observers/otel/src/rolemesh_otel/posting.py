"""Post a message to a collector."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from google.protobuf.message import Message

from rolemesh_tracking import Refused

__all__ = ["post"]

REFUSES = (400, 413)
"""The statuses of a collector that cannot read a message. After all others, such as 401 and 503, it may be repaired."""


def post(url: str, message: Message, headers: Mapping[str, str], timeout_s: float) -> None:
    """Post, and return after the collector has answered.

    Raises OSError if it does not answer or is not ready, and `Refused` if it cannot read the message.
    """
    body = message.SerializeToString()
    request = Request(url, body, {"Content-Type": "application/x-protobuf", **headers}, method="POST")
    try:
        with urlopen(request, timeout=timeout_s) as answer:
            answer.read()
    except HTTPError as error:
        with error:
            what = Refused if error.code in REFUSES else OSError
            raise what(f"{url} answers {error.code} {error.reason}") from None
