"""The log of the server: a request that is no HTTP gets one line instead of a traceback."""

from __future__ import annotations

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["server_log"]

MOST_SHOWN: Final = 200


class _Shorter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
            record.msg, record.args = (
                "refused a request that is no HTTP: %s",
                (" ".join(str(error).split())[:MOST_SHOWN],),
            )
        return True


def server_log() -> logging.Logger:
    """Return the logger for `aiohttp.web.AppRunner`."""
    log = logging.getLogger("rolemesh_gateway.server")
    if not any(isinstance(each, _Shorter) for each in log.filters):
        log.addFilter(_Shorter())
    return log
