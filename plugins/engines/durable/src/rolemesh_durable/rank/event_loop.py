"""A rank's asyncio loop: coroutines run on the rank's main thread, and what comes in is handled while they wait."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

import zmq

from rolemesh.graph.logical import OpCall
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.rank.endpoint import IDLE_MS, Endpoint

__all__ = ["EventLoop", "Line"]

T = TypeVar("T")


class Line:
    """What one task of an operator does one after the other, so that its calls are numbered alike in each life of the
    rank, whichever task gets its answers first. `path` tells which task it is: of which one, and the how manieth."""

    __slots__ = ("_count", "op", "path", "step")

    def __init__(self, op: OpCall, step: int, path: str = "") -> None:
        self.op, self.step, self.path, self._count = op, step, path, 0

    def next(self) -> str:
        """The path of what comes next."""
        self._count += 1
        return f"{self.path}.{self._count - 1}"

    @staticmethod
    def present() -> Line | None:
        """That of the task that runs; None if it is no operator's."""
        return _LINE.get(None)


_LINE: ContextVar[Line] = ContextVar("line")


def _new_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], context: Context | None = None
) -> asyncio.Task[T]:
    parent = _LINE.get(None)
    context = context if context is not None else copy_context()
    if parent is not None:
        context.run(_LINE.set, Line(parent.op, parent.step, parent.next()))
    return asyncio.Task(coroutine, loop=loop, context=context)


class EventLoop:
    """Made when the rank needs it. Not thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._selector = _Selector(endpoint)
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._loop.set_task_factory(_new_task)  # type: ignore[arg-type]
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def on_block(self) -> Callable[[bool], None]:
        """Called with True before an operator's coroutines wait for something, and with False after."""
        return self._selector.on_block

    @on_block.setter
    def on_block(self, told: Callable[[bool], None]) -> None:
        self._selector.on_block = told

    def here(self) -> bool:
        """Whether a coroutine of this loop is asking."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def future(self) -> asyncio.Future[None]:
        """For a coroutine to wait for."""
        return self._loop.create_future()

    def run(self, coroutine: Coroutine[Any, Any, T], line: Line) -> T:
        """Run an operator's coroutine to its end; what comes in is handled meanwhile. Raises `Stopping`."""
        task = self._task(coroutine, line)
        self._selector.inside = True
        try:
            return self._loop.run_until_complete(task)
        finally:
            self._selector.inside = False
            if left := asyncio.all_tasks(self._loop) - self._tasks:
                self._cancel(left)

    def each(self, begun: Iterator[tuple[Coroutine[Any, Any, T], Line] | None], several: int) -> Iterator[T]:
        """What coroutines return, as each is finished; at most `several` run at once, and the next is begun when there
        is room for it. None is one that is begun when one of those under way is finished. What comes in is handled
        while they wait, not while a value is taken. Raises `Stopping`."""
        tasks: set[asyncio.Task[T]] = set()
        more = True
        try:
            while more or tasks:
                while more and len(tasks) < several:
                    one = next(begun, ())
                    if one is None:
                        break
                    if more := one != ():
                        tasks.add(self._task(*one))
                if tasks:
                    self._selector.inside = True
                    try:
                        done, tasks = self._loop.run_until_complete(
                            asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                        )
                    finally:
                        self._selector.inside = False
                    yield from [task.result() for task in done]
        finally:
            self._cancel([task for task in tasks if not task.done()])

    def _task(self, coroutine: Coroutine[Any, Any, T], line: Line) -> asyncio.Task[T]:
        context = copy_context()
        context.run(_LINE.set, line)
        return asyncio.Task(coroutine, loop=self._loop, context=context)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Begin a task that goes on whenever the rank waits."""
        task = asyncio.Task(coroutine, loop=self._loop)
        self._tasks.add(task)
        self._selector.woken = True
        task.add_done_callback(self._ended)

    def wait(self, wait_ms: int) -> None:
        """Let the tasks go on until something has come in, or the time is over."""
        handle = self._loop.call_later(wait_ms / 1000, self._loop.stop)
        try:
            self._loop.run_forever()
        finally:
            handle.cancel()

    @property
    def busy(self) -> bool:
        """Whether there are tasks."""
        return bool(self._tasks)

    def close(self) -> None:
        """Cancel the tasks. Idempotent."""
        if not self._loop.is_closed():
            self._cancel(set(self._tasks))
            self._loop.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def _cancel(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Let them clean up, for a moment."""
        self._selector.quiet = True
        try:
            for task in tasks:
                task.cancel()
            if tasks and not self._loop.is_closed():
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=0.5))
        finally:
            self._selector.quiet = False


class _Selector(selectors.DefaultSelector):
    """Waits for the rank's inbox beside what the loop waits for.

    ZeroMQ tells of a message by an edge only, so the inbox is emptied before each wait (``inside`` a coroutine that is
    run to its end), or the loop is stopped for whoever reads it.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._inbox = endpoint.inbox
        self._fd = int(self._inbox.getsockopt(zmq.FD))
        self.register(self._fd, selectors.EVENT_READ, None)
        self.inside = self.quiet = self.woken = False
        self.on_block: Callable[[bool], None] = lambda begins: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        longest = IDLE_MS / 1000
        wait = longest if timeout is None else min(timeout, longest)
        if self.quiet:
            return self._mine(super().select(wait))
        if self.inside:
            if self._endpoint.look() or self.woken:
                wait, self.woken = 0, False
            if self._endpoint.stopping:
                raise Stopping
        elif int(self._inbox.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            asyncio.get_running_loop().stop()
            wait = 0
        if wait <= 0:
            return self._mine(super().select(0))
        if not self.inside:
            return self._mine(super().select(wait))
        self.on_block(True)
        found = super().select(wait)
        self.on_block(False)
        return self._mine(found)

    def _mine(self, found: list[tuple[selectors.SelectorKey, int]]) -> list[tuple[selectors.SelectorKey, int]]:
        return [(key, events) for key, events in found if key.fd != self._fd]
