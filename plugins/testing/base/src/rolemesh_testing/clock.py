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
CALENDARS = ("localtime", "gmtime", "ctime")
"""Functions of `time` that take seconds, or no argument for the present time."""


@contextmanager
def shifted(seconds: int, module: str) -> Iterator[None]:
    """Let the clocks of `time` and `datetime` be `seconds` ahead, also under the names by which `module` has imported
    them.
    """
    moment, day = _later(seconds)
    later: dict[int, Any] = {id(datetime.datetime): moment, id(datetime.date): day}
    with pytest.MonkeyPatch.context() as patch:
        for name in CLOCKS:
            real, ahead = getattr(time, name), seconds * (10**9 if name.endswith("_ns") else 1)
            later[id(real)] = lambda real=real, ahead=ahead: real() + ahead
            patch.setattr(time, name, later[id(real)])
        for name in CALENDARS:
            real = getattr(time, name)
            later[id(real)] = lambda at=None, real=real: real(time.time() if at is None else at)
            patch.setattr(time, name, later[id(real)])
        later[id(time.strftime)] = lambda text, at=None, real=time.strftime: real(text, at or time.localtime())
        patch.setattr(time, "strftime", later[id(time.strftime)])
        for name, value in list(vars(sys.modules[module]).items()):
            if id(value) in later:
                patch.setattr(sys.modules[module], name, later[id(value)])
        patch.setattr(datetime, "datetime", moment)
        patch.setattr(datetime, "date", day)
        yield


def _later(seconds: int) -> tuple[type[datetime.datetime], type[datetime.date]]:
    real, day = datetime.datetime, datetime.date

    class LaterMoment(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.fromtimestamp(time.time(), tz)

        today = now

        @classmethod
        def utcnow(cls) -> Any:
            return real.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    class LaterDay(datetime.date):
        @classmethod
        def today(cls) -> Any:
            return day.fromtimestamp(time.time())

    return LaterMoment, LaterDay
