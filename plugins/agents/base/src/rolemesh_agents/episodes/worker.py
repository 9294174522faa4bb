"""A thread that runs the methods of one episode, so that a slow tool does not keep its rank from answering."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import inspect
import os
import queue
from collections.abc import Callable
from typing import Any

from rolemesh_agents.episodes.standing import stands_in

__all__ = ["LateError", "Worker", "name_of"]


class LateError(Exception):
    """A method has not returned within its limit. The text names it, and says where it stands."""


class Worker:
    """Runs functions one after the other, each within a limit. A coroutine that a function returns runs in the loop.

    A thread cannot be ended from outside. If a function does not return in time, the worker is `busy` until it does,
    and takes no other function. The thread does not keep the process alive.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: int | None = None
        self._name = ""
        """The name of the function that runs, or ran last."""
        self._running: asyncio.Future[Any] | None = None

    @property
    def busy(self) -> bool:
        """True if a function that was late still runs."""
        return self._running is not None and not self._running.done()

    async def run(self, limit: float, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function` returns, within `limit` seconds. Raises `LateError`, and the function's own errors.

        A late function of before has the same time to return. Its result is dropped.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + limit
        if self._running is not None and self.busy and not await _returned(self._running, limit):
            raise self._late(limit)
        self._name = name_of(function)
        if inspect.iscoroutinefunction(function):
            found = function(*args)
        else:
            self._running = self._start(loop, function, args)
            if not await _returned(self._running, until - loop.time()):
                raise self._late(limit)
            found = self._running.result()
        if inspect.isawaitable(found):
            try:
                async with asyncio.timeout_at(until) as late:
                    return await found
            except TimeoutError:
                if late.expired():
                    raise LateError(self._told(limit)) from None
                raise
        return found

    def close(self) -> None:
        """Let the thread end after its last function."""
        self._jobs.put(None)

    def _told(self, limit: float) -> str:
        return f"{self._name} has not returned within {limit:g} s"

    def _late(self, limit: float) -> LateError:
        return LateError(f"{self._told(limit)}; it is in {stands_in(self._thread)}")

    def _start(
        self, loop: asyncio.AbstractEventLoop, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = loop.create_future()
        process = os.getpid()

        def settle(error: BaseException | None, value: Any) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
                future.exception()  # it is not "never retrieved", even if nobody waits any more
            else:
                future.set_result(value)

        def job() -> None:
            error, value = None, None
            try:
                value = function(*args)
            except BaseException as raised:  # also SystemExit: a tool must not end the rank
                error = raised if isinstance(raised, Exception) else RuntimeError(f"it raised {raised!r}")
            if os.getpid() != process:
                os._exit(0)  # the function has forked, and this is the child
            with contextlib.suppress(RuntimeError):  # the rank has ended, and its loop is closed
                loop.call_soon_threadsafe(settle, error, value)

        self._jobs.put(job)
        if self._thread is None:
            # Unlike threading.Thread it does not wait until the thread runs.
            self._thread = _thread.start_new_thread(self._work, ())
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function; that of a method begins with the class of its object."""
    if inspect.ismethod(function):
        return f"{type(function.__self__).__name__}.{function.__name__}"
    return getattr(function, "__qualname__", repr(function))


async def _returned(future: asyncio.Future[Any], limit: float) -> bool:
    done, _ = await asyncio.wait([future], timeout=max(limit, 0))
    return bool(done)
