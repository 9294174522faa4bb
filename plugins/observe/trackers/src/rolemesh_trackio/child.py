"""The process that runs Trackio: it reads orders from stdin. It finishes the run and ends when stdin is closed.

Trackio has one folder and one current run per process, and prints. So it does not run in the master.
"""

from __future__ import annotations

import os
import sys
from math import nan
from threading import Timer

import msgspec
import trackio

from rolemesh_trackio.orders import Begin, End, Log, Order

__all__ = ["main"]

FLUSH_S = 45.0
"""Maximum seconds that the process stays after its observer has gone."""


def main() -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    run = None
    for raw in sys.stdin.buffer:
        order = msgspec.json.decode(raw, type=Order)
        try:
            if isinstance(order, Begin):
                run = _begun(order)
            elif run is not None and isinstance(order, Log):
                _log(run, order)
            elif run is not None and isinstance(order, End):
                run.finish()
                run = None
            error = ""
        except Exception as raised:
            error = repr(raised)
        answers.write(msgspec.json.encode(error) + b"\n")
    limit = Timer(FLUSH_S, os._exit, (1,))
    limit.daemon = True
    limit.start()
    if run is not None:
        run.finish()


def _begun(order: Begin) -> trackio.Run:
    return trackio.init(
        project=order.project,
        name=order.name,
        group=order.group or None,
        config=order.config,
        space_id=order.space or None,
        server_url=order.server or None,
        resume="allow",
        embed=False,
        auto_log_cpu=False,
        auto_log_gpu=False,
    )


def _log(run: trackio.Run, order: Log) -> None:
    for step, values in order.lines:
        run.log({name: nan if value is None else value for name, value in values.items()}, step=step)
    for step, title, text in order.alerts:
        run.alert(title=title, text=text, level=trackio.AlertLevel.INFO, step=step)


if __name__ == "__main__":
    main()
