"""An exception of the plugin under test, as a message from its process."""

from __future__ import annotations

import traceback

import msgspec

__all__ = ["Raised", "as_raised"]


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The plugin raised: the error in one line, and its traceback."""

    error: str
    trace: str


def as_raised(error: BaseException) -> Raised:
    """Return `error` as a message. Text that UTF-8 cannot hold is escaped."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return Raised(*(part.encode(errors="backslashreplace").decode() for part in (text, trace)))
