"""Another time for a plugin's module, so that answers which depend on a clock differ."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["OFFSETS", "shifted"]

OFFSETS = (*range(1, 62), 3_600, 43_200, 86_400, 30 * 86_400)
"""Seconds by which to shift the clocks: each second of a minute, an hour, half a day, a day and a month."""
CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


@contextmanager
def shifted(seconds: int, module: str) -> Iterator[None]:
    """Let the clocks of `time` and `datetime` be `seconds` ahead, also under the names by which `module` has imported
    them.
    """
    later: dict[int, Any] = {id(datetime.datetime): _later(seconds)}
    with pytest.MonkeyPatch.context() as patch:
        for name in CLOCKS:
            real, ahead = getattr(time, name), seconds * (10**9 if name.endswith("_ns") else 1)
            later[id(real)] = lambda real=real, ahead=ahead: real() + ahead
            patch.setattr(time, name, later[id(real)])
        for name, value in list(vars(sys.modules[module]).items()):
            if id(value) in later:
                patch.setattr(sys.modules[module], name, later[id(value)])
        patch.setattr(datetime, "datetime", later[id(datetime.datetime)])
        yield


def _later(seconds: int) -> type[datetime.datetime]:
    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.fromtimestamp(time.time(), tz)

    return Later
