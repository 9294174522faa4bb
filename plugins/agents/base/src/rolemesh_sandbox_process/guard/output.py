"""The kept part of a command's output: its beginning and its end, in bounded memory."""

from __future__ import annotations

import codecs

__all__ = ["Output"]

_MARK = 64
"""Bytes that are reserved for the line in place of the missing part."""


def _question_mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?", error.end


codecs.register_error("rolemesh-question-mark", _question_mark)


class Output:
    """Takes bytes, and keeps at most `limit` of them.

    These are the first half, a line that counts the missing bytes, and the last half.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._half = max((limit - _MARK) // 2, 0)
        self._head, self._tail, self._seen = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self._seen += len(data)
        room = self.limit - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-self.limit :]

    @property
    def cut(self) -> int:
        """Number of the missing bytes."""
        return self._seen - 2 * self._half if self._seen > self.limit else 0

    def text(self) -> str:
        """Return the kept part. Bytes that are not UTF-8 become question marks."""
        if not self.cut:
            return _text(bytes(self._head))
        last = (self._head + self._tail)[-self._half :] if self._half else b""
        mark = f"\n[{self.cut} bytes are missing here]\n" if self._half else ""
        return _text(bytes(self._head[: self._half])) + mark + _text(bytes(last))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "rolemesh-question-mark")
