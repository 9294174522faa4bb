"""The encoding of protocol buffers: https://protobuf.dev/programming-guides/encoding. Pure."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["double", "fixed64", "integer", "message", "text", "varint"]


def varint(value: int) -> bytes:
    """Return a 64-bit integer in base 128, the lowest digits first. A negative one becomes its two's complement."""
    if 0 <= value < SHORT:
        return _SHORT[value]
    return _long(value & (1 << 64) - 1)


def integer(field: int, value: int) -> bytes:
    """Return a field of a type such as int64, uint32, bool or an enum."""
    return _SHORT[field << 3] + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """Return a field of type fixed64."""
    return _SHORT[field << 3 | 1] + value.to_bytes(8, "little")


def double(field: int, value: float) -> bytes:
    """Return a field of type double."""
    return _SHORT[field << 3 | 1] + struct.pack("<d", value)


def message(field: int, *parts: bytes) -> bytes:
    """Return a field that holds a message with the fields `parts`."""
    content = b"".join(parts)
    return _SHORT[field << 3 | 2] + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """Return a field of type string. A lone surrogate becomes a question mark."""
    return message(field, value.encode(errors="replace"))


def _long(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


SHORT: Final = 1 << 14
_SHORT: Final = tuple(map(_long, range(SHORT)))
"""The encodings of one and two bytes, because a trace has millions of them."""
