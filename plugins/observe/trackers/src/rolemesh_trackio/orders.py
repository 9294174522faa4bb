"""The orders to the process that runs Trackio. Each is a line of JSON. The answer is an error's text, or ``""``."""

from __future__ import annotations

import msgspec

__all__ = ["Begin", "End", "Log", "Order"]


class Begin(msgspec.Struct, tag="begin"):
    """Begin the run `name`, or continue it."""

    project: str
    name: str
    group: str
    config: dict[str, str | int | float | bool]
    space: str = ""
    server: str = ""


class Log(msgspec.Struct, tag="log"):
    """Log the values of steps; None stands for NaN. An alert has a step, a title and a text."""

    lines: list[tuple[int, dict[str, float | None]]]
    alerts: list[tuple[int, str, str]]


class End(msgspec.Struct, tag="end"):
    """Finish the run with the status of the job."""

    status: str


Order = Begin | Log | End
