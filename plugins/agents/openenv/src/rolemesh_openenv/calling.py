"""Calls the methods of an OpenEnv object as OpenEnv's server does, in threads of its own."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from rolemesh_agents.episodes.standing import stands_in, waiting_for

__all__ = ["Caller", "Line", "StillRunsError"]

T = TypeVar("T")


class StillRunsError(Exception):
    """A function has not returned in time. The text says where it stands."""


class Line:
    """A thread that runs functions one after the other. It does not keep the process alive if one never returns."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="openenv", daemon=True)
        self._thread.start()

    def run(self, function: Callable[[], T], seconds: float | None = None) -> T:
        """Return what `function` returns. Raises its errors, and `StillRunsError` after `seconds`; None: no limit."""
        done: Future[T] = Future()
        self._jobs.put((function, done))
        with waiting_for(self._thread.ident or 0):
            try:
                return done.result(seconds)
            except TimeoutError:
                if done.done():
                    raise
                raise StillRunsError(stands_in(self._thread.ident)) from None

    def close(self) -> None:
        """Let the thread end after its last function."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, done = job
            try:
                done.set_result(function())
            except Exception as error:
                done.set_exception(error)
            except BaseException as error:  # such as SystemExit: it must not end the rank
                done.set_exception(RuntimeError(f"it raised {error!r}"))


class Caller:
    """Holds an object. Plain methods run in one thread, since some environments demand it; others in an event loop.

    Where the class has both forms of `reset` or `step`, the `async` one is called if the class has written it itself.
    An `MCPEnvironment` keeps one session to its tools, from the first call to `close`.
    """

    def __init__(self, make: Callable[[], Any], seconds: float) -> None:
        """`make` returns the object, within `seconds`. Raises its errors, and `StillRunsError`."""
        self._thread = Line()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._session: Any = None
        try:
            self.held = self._thread.run(make, seconds)
        except BaseException:
            self._thread.close()
            raise

    def accepts(self, name: str) -> tuple[set[str], bool]:
        """Return the names of a method's parameters, and whether it takes any other one."""
        parameters = inspect.signature(self._method(name)).parameters.values()
        return {each.name for each in parameters}, any(each.kind is each.VAR_KEYWORD for each in parameters)

    def call(self, name: str, /, *arguments: Any, **named: Any) -> Any:
        """Call a method and return its result, awaited if it is `async`."""
        self._hold_session()
        method = self._method(name)
        if inspect.iscoroutinefunction(method):
            return self._awaited(method(*arguments, **named))
        found = self._thread.run(partial(method, *arguments, **named))
        return self._awaited(found) if inspect.isawaitable(found) else found

    def call_accepted(self, name: str, named: Mapping[str, Any]) -> Any:
        """Call a method with those arguments that it takes."""
        names, any_other = self.accepts(name)
        return self.call(name, **{key: value for key, value in named.items() if any_other or key in names})

    def close(self) -> None:
        """Close the session and the object, and end the threads."""
        try:
            if self._session is not None and self._loop is not None and self._over is not None:
                self._loop.call_soon_threadsafe(self._over.set)
                self._session.result()
            self._thread.run(self.held.close)
        finally:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._runner.join()
                self._loop.close()
            self._thread.close()

    def _method(self, name: str) -> Any:
        from openenv.core.env_server.interfaces import Environment

        other = getattr(self.held, f"{name}_async", None)
        base = getattr(Environment, f"{name}_async", None)
        own = other is not None and getattr(other, "__func__", other) is not base
        return other if own else getattr(self.held, name)

    def _awaited(self, work: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(_awaiting(work), self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._runner = threading.Thread(target=self._loop.run_forever, name="openenv-loop", daemon=True)
            self._runner.start()
        return self._loop

    def _hold_session(self) -> None:
        make = getattr(self.held, "mcp_session", None)
        if self._session is None and callable(make):
            loop, up = self._running(), threading.Event()
            self._session = asyncio.run_coroutine_threadsafe(self._holding(make, up), loop)
            self._session.add_done_callback(lambda _: up.set())
            up.wait()
            if self._session.done():
                self._session.result()

    async def _holding(self, make: Callable[[], Any], up: threading.Event) -> None:
        self._over = asyncio.Event()
        async with make():
            up.set()
            await self._over.wait()


async def _awaiting(work: Awaitable[Any]) -> Any:
    return await work
