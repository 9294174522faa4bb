"""The place of a thread in code: its innermost function that is not of Python itself."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["innermost", "stands_in", "waiting_for"]

_LIBRARY = str(Path(threading.__file__).parent)
_WAITS: dict[int, int] = {}
"""The threads that wait for another one, and which one, by their identifiers."""


@contextmanager
def waiting_for(thread: int) -> Iterator[None]:
    """Note that this thread waits for another one: that one then says where both stand."""
    this = threading.get_ident()
    _WAITS[this] = thread
    try:
        yield
    finally:
        del _WAITS[this]


def stands_in(thread: int | None) -> str:
    """Return the function in which a thread is, with file and line. `thread`: its identifier."""
    while thread in _WAITS:
        thread = _WAITS[thread]
    frame = sys._current_frames().get(thread or 0)
    while frame is not None:
        code = frame.f_code
        if "site-packages" in code.co_filename or not code.co_filename.startswith((_LIBRARY, "<")):
            return f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return "its code"


def innermost(stack: str) -> str:
    """Return the innermost function that is not of Python itself, with file and line, of a stack that faulthandler has
    written; "" if there is none."""
    for path, line, name in re.findall(r'File "([^"\n]{1,300})", line (\d+) in (\w{1,100})$', stack, re.MULTILINE):
        if "site-packages" in path or not path.startswith((_LIBRARY, "<")):
            return f"{name} ({path}:{line})"
    return ""
