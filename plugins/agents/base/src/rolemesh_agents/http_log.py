"""The log of an HTTP server: a request that is no HTTP gets one line instead of a traceback."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["server_log"]

MOST_SHOWN: Final = 200


class _Shorter(logging.Filter):
    def __init__(self, *malformed: type[Exception]) -> None:
        super().__init__()
        self._malformed = malformed

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, self._malformed):
            record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
            record.msg, record.args = (
                "refused a request that is no HTTP: %s",
                (" ".join(str(error).split())[:MOST_SHOWN],),
            )
        return True


def server_log(name: str, *malformed: type[Exception]) -> logging.Logger:
    """Return the logger `name` for a server that raises `malformed` for requests that are no HTTP."""
    log = logging.getLogger(name)
    if not any(isinstance(each, _Shorter) for each in log.filters):
        log.addFilter(_Shorter(*malformed))
    return log
