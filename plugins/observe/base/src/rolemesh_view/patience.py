"""Time limits for what reads files: a store that does not answer holds up its own run, and neither others nor the end.

A thread that waits for such a store cannot be ended. It is a daemon, so it does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from rolemesh_facts.waiting import Readers

__all__ = ["LIMIT_S", "MOST_S", "PAGE_S", "Silent", "Stuck", "in_thread", "in_turn", "within"]

LIMIT_S = 15.0
"""Seconds without progress after which the files of a run count as silent."""
PAGE_S, MOST_S = 2.0, 60.0
"""Seconds after which a page tells how far the reading is, and that data for a script is waited for at most."""
LOOK_S = 0.25
"""Seconds between two looks at the threads that read."""
ROW_S = 3.0
"""Seconds that the list of jobs waits for the files of each run."""
MOST_WAITS = 3
"""Number of runs for which one list waits in vain. It leaves out the rest."""
T = TypeVar("T")
Item = TypeVar("Item")
Stuck = MutableMapping[str, Readers]
"""Those that read the files of a run, or wait for them, longer than somebody waited, by the names of runs."""


class Silent(Exception):
    """Files have not been read in time: `readers` still read them, or wait for them."""

    def __init__(self, readers: Readers) -> None:
        super().__init__("files have not been read in time")
        self.readers = readers


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread of its own."""
    return await _begun(work)[1]


async def within(seconds: float, work: Callable[[], T], folder: Path) -> T:
    """Return what `work` returns, from a thread of its own, which reads in `folder`.

    Raises `Silent` if it takes longer than `seconds`, or `LIMIT_S` without progress.
    """
    thread, result = _begun(work)
    readers, until = Readers(folder, thread), time.monotonic() + seconds
    while True:
        try:
            return await asyncio.wait_for(asyncio.shield(result), min(LOOK_S, max(0.0, until - time.monotonic())))
        except TimeoutError:
            if result.done():  # just now, or `work` raised this error
                return result.result()
        if readers.still_s() >= LIMIT_S or time.monotonic() >= until:
            result.cancel()
            raise Silent(readers)


def in_turn(
    items: Sequence[Item], names: Sequence[str], work: Callable[[Item], T], stuck: Stuck, folder: Path
) -> list[T | None]:
    """Return ``work(item)`` of each item; None for those whose files are not read within `ROW_S`.

    `names` are those of the items, in `folder`. It adds the threads that wait to `stuck`, and asks for none that is
    there.
    """
    found: list[T | None] = [None] * len(items)
    at = waits = 0
    while at < len(items) and waits < MOST_WAITS:
        told: SimpleQueue[tuple[int, T | BaseException | None]] = SimpleQueue()
        over = threading.Event()

        def go(first: int, told: SimpleQueue[tuple[int, T | BaseException | None]], over: threading.Event) -> None:
            for number in range(first, len(items)):
                waiting = stuck.get(names[number])
                try:
                    told.put((number, None if waiting and waiting.is_alive() else work(items[number])))
                except BaseException as error:
                    told.put((number, error))
                if over.is_set():
                    return

        thread = threading.Thread(target=go, args=(at, told, over), daemon=True, name="rows")
        thread.start()
        try:
            while at < len(items):
                number, result = told.get(timeout=ROW_S)
                if isinstance(result, BaseException):
                    raise result
                found[number], at = result, number + 1
        except Empty:
            stuck[names[at]] = Readers(folder / names[at].lstrip("/"), thread)
            thread.join(LOOK_S)  # until the next look at it
            at, waits = at + 1, waits + 1
        finally:
            over.set()
    return found


def _begun(work: Callable[[], T]) -> tuple[threading.Thread, asyncio.Future[T]]:
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def go() -> None:
        try:
            value, error = work(), None
        except BaseException as raised:
            value, error = None, raised
        with suppress(RuntimeError):  # the loop is closed: the viewer has ended
            loop.call_soon_threadsafe(tell, value, error)

    thread = threading.Thread(target=go, daemon=True, name="answer")
    thread.start()
    return thread, result
