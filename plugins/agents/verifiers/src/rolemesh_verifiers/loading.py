"""Loads environments of verifiers within a time limit, and says what one waits for that is late."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import shlex
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from rolemesh.errors import OptionsError
from rolemesh_agents.episodes.standing import stands_in

__all__ = ["within"]

T = TypeVar("T")
SEED = 0
END_S = 10.0
"""Seconds that the MCP servers of an environment that was not loaded have to end."""


async def within(seconds: float, make: Callable[[], T], name: str, where: str) -> T:
    """Return what `make` returns in a thread of its own: some environments run an event loop while they load.

    Before that, it seeds the global random numbers of Python and numpy. Some environments make their tasks with these,
    and all ranks must see the same tasks.

    Raises `OptionsError` if it is late, and ends the MCP servers that a failed `make` has started. A late thread cannot
    be ended; it does not keep the process alive. `name`: what is loaded. `where`: the option that names it.
    """
    loop = asyncio.get_running_loop()
    made: asyncio.Future[T] = loop.create_future()
    before = {id(each) for each in _servers()}

    def settle(found: Any, error: BaseException | None) -> None:
        if not made.done():
            made.set_exception(error) if error is not None else made.set_result(found)

    def run() -> None:
        found, wrong = None, None
        random.seed(SEED)
        np.random.seed(SEED)
        try:
            found = make()
        except (SystemExit, KeyboardInterrupt, StopIteration) as error:
            wrong = RuntimeError(f"it raised {error!r}")
        except Exception as error:
            wrong = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found, wrong)

    thread = threading.Thread(target=run, name="verifiers-load", daemon=True)
    thread.start()
    try:
        await asyncio.wait([made], timeout=seconds)
        if not made.done():
            raise _late(seconds, thread, name, where)
        return made.result()
    finally:
        if not made.done() or made.exception() is not None:
            await _end([each for each in _servers() if id(each) not in before])


def _late(seconds: float, thread: threading.Thread, name: str, where: str) -> OptionsError:
    waits = [each.config for each in _servers() if not each.tools]
    what = f"{name} has not been loaded within {seconds:g} s"
    if waits:
        servers = "; ".join(f"{each.name} ({shlex.join([each.command, *(each.args or ())])})" for each in waits)
        remedy = "run its command in a shell: it must answer the request `initialize`. If it is slow, raise `load_s`"
        return OptionsError(f"{what}: the MCP server {servers} does not answer", where=where, remedy=remedy)
    remedy = "if it loads much data there, raise `load_s`; else mend what it waits for"
    return OptionsError(f"{what}: it still runs {stands_in(thread.ident)}", where=where, remedy=remedy)


def _servers() -> Iterator[Any]:
    """Return the connections to MCP servers of all environments, also of those that still load."""
    return (each for each in gc.get_objects() if type(each).__name__ == "MCPServerConnection")


async def _end(servers: list[Any]) -> None:
    """End MCP servers, each in the event loop of its environment."""
    begun = [each for each in servers if each.loop is not None and each._connection_task is not None]
    ends = [asyncio.wrap_future(asyncio.run_coroutine_threadsafe(each.disconnect(), each.loop)) for each in begun]
    if ends:
        await asyncio.wait(ends, timeout=END_S)
