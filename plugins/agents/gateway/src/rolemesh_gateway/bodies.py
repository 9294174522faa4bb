"""Bodies of requests: undoes their encoding and reads them as JSON, within a limit. No I/O."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import msgspec

from rolemesh_gateway.requests import RefusedError

__all__ = ["Body"]

WINDOWS = {"gzip": 31, "deflate": 15}
"""Parameter `wbits` of zlib for each encoding that the gateway undoes. Clients send some "deflate" without a head."""
BARE = -15
ESCAPES = (b"\\u003a", b"\\u003A")
"""Other forms of a colon in a text."""
MOST_PARTS = 100_000
"""Maximum number of objects, lists and keys of a body. More would hold up all conversations of the rank while they are
read; a long conversation has some thousands."""
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""A text in JSON. The signs of objects in it count for nothing."""


class Body:
    """The body of a request, which arrives in chunks. All methods raise `RefusedError`."""

    def __init__(self, encoding: str, most_bytes: int) -> None:
        """`encoding`: the head's `Content-Encoding`; "" for none. `most_bytes`: the limit of what it decodes to."""
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", *WINDOWS):
            reason = f"Content-Encoding: {self._encoding[:64]!r} is not known; send the body as it is, or with gzip"
            raise RefusedError(415, reason, param="Content-Encoding")
        self._most = most_bytes
        self._data = bytearray()
        self._undo: Any = None

    def __len__(self) -> int:
        return len(self._data)

    def add(self, chunk: bytes) -> None:
        """Add a chunk. A chunk of zeros, a thousand times shorter than what it means, takes no more memory either."""
        self._data += self._decoded(chunk) if self._encoding in WINDOWS and chunk else chunk
        if len(self._data) > self._most:
            raise RefusedError(413, f"the body is longer than {self._most / 1e6:g} MB", code="request_too_large")

    def value(self) -> dict[str, Any]:
        """Return the JSON object of the whole body."""
        if self._encoding in WINDOWS and (self._undo is None or not self._undo.eof):
            raise _wrong("it ends too early")
        if _parts(self._data) > MOST_PARTS and _parts(TEXT.sub(b"", self._data)) > MOST_PARTS:
            reason = f"the body has more than {MOST_PARTS:,} objects, lists and keys; send fewer"
            raise RefusedError(413, reason, code="request_too_large")
        try:
            body = msgspec.json.decode(self._data)
            _check_keys(self._data, body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedError(400, f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise RefusedError(400, "the body must be a JSON object")
        return body

    def _decoded(self, chunk: bytes) -> bytes:
        if self._undo is None:
            bare = self._encoding == "deflate" and chunk[0] & 0xF != 8
            self._undo = zlib.decompressobj(BARE if bare else WINDOWS[self._encoding])
        try:
            found: bytes = self._undo.decompress(chunk, self._most + 1 - len(self._data))
        except zlib.error as error:
            raise _wrong(str(error)) from None
        if self._undo.unused_data:
            raise _wrong("more follows its end")
        return found


def _parts(data: bytes | bytearray) -> int:
    return sum(map(data.count, (b"{", b"[", b":")))


def _wrong(reason: str) -> RefusedError:
    return RefusedError(400, f"the body is not encoded as its head says: {reason}")


def _check_keys(data: bytearray, body: Any) -> None:
    """Raise `RefusedError` if an object has a key twice. The parser keeps the last value, and the first is lost.

    Without such keys the body has as many colons as its value has in JSON again, unless a text has one as an escape.
    So a slow parser need not look at each object.
    """
    escapes = any(each in data for each in ESCAPES)
    if escapes or data.count(b":") != msgspec.json.encode(body).count(b":"):
        json.loads(data, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            name = key[:64]
            raise RefusedError(400, f"the body has the key {name!r} twice in one object; send it once", param=name)
        seen.add(key)
