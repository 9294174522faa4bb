"""The tasks of a rank's operators, and the asyncio loop that runs coroutines on the rank's main thread."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import zmq

from rolemesh.graph.logical import OpCall
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.rank.call_sequence import CallSequence
from rolemesh_durable.rank.endpoint import IDLE_MS, Endpoint

__all__ = ["EventLoop", "Tasks"]

T = TypeVar("T")


class Tasks:
    """The tasks of a rank's operators: the one that runs in a `def` operator, and the event loop for coroutines."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._loop: EventLoop | None = None
        self.line: CallSequence | None = None
        """The line of the `def` operator, or of its item, that runs now; None between operators."""

    @property
    def loop(self) -> EventLoop:
        """The event loop. The first use makes it, as it takes file descriptors."""
        if self._loop is None:
            self._loop = EventLoop(self._endpoint)
        return self._loop

    @property
    def busy(self) -> bool:
        """True if there are tasks that go on while the rank waits."""
        return self._loop is not None and self._loop.busy

    @property
    def ending(self) -> bool:
        """True if the event loop cancels the tasks of an operator that has ended."""
        return self._loop is not None and self._loop.ending

    def here(self) -> bool:
        """Return True if a coroutine of the event loop asks."""
        return self._loop is not None and self._loop.here()

    def begins(self, line: CallSequence) -> None:
        """An operator, or one of its items, begins: its calls are numbered from 0 on."""
        self.line = line

    def each(self, op: OpCall, step: int, items: Iterator[int]) -> Iterator[int]:
        """Yield the `items` that a `def` operator makes in turn; each item numbers its own calls."""
        for item in items:
            self.begins(CallSequence(op, step, f".{item}"))
            yield item

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Run a block that belongs to no operator."""
        line, self.line = self.line, None
        try:
            yield
        finally:
            self.line = line

    def close(self) -> None:
        """Cancel the tasks. Idempotent."""
        if self._loop is not None:
            self._loop.close()


class EventLoop:
    """The asyncio loop of a rank. Not thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._selector = _Selector(endpoint)
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._loop.set_task_factory(self._new_task)  # type: ignore[arg-type]
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lines = WeakKeyDictionary[asyncio.Task[Any], CallSequence]()
        """The lines of the tasks that tasks of operators have begun."""

    def on_block(self, told: Callable[[bool], None], *, inside: bool = True) -> None:
        """Call `told(True)` before all coroutines wait, and `told(False)` after; `inside` an operator, or outside."""
        self._selector.on_block[inside] = told

    def here(self) -> bool:
        """Return True if a coroutine of this loop asks."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def future(self) -> asyncio.Future[None]:
        """Return a future for a coroutine to wait for."""
        return self._loop.create_future()

    def begin(self, coroutine: Coroutine[Any, Any, T], line: CallSequence) -> asyncio.Task[T]:
        """Start a task of an operator that also goes on while the rank waits for something else, and return it."""
        task = self._task(coroutine, line)
        self._tasks.add(task)
        self._selector.woken = True
        task.add_done_callback(self._ended)
        return task

    def until_one_ends(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Run until one of `tasks` has ended, and handle incoming messages meanwhile. Raises `Stopping`."""
        self._selector.inside = True
        try:
            self._loop.run_until_complete(asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))
        finally:
            self._selector.inside = False

    def run(self, coroutine: Coroutine[Any, Any, T], line: CallSequence) -> T:
        """Run an operator's coroutine to its end, and handle incoming messages meanwhile. Raises `Stopping`."""
        task = self._task(coroutine, line)
        self._selector.inside = True
        try:
            return self._loop.run_until_complete(task)
        finally:
            self._selector.inside = False
            if left := [each for each in asyncio.all_tasks(self._loop) - self._tasks if not self._is_later(each, line)]:
                self.cancel(left)

    def each(self, begun: Iterator[tuple[Coroutine[Any, Any, T], CallSequence] | None], several: int) -> Iterator[T]:
        """Yield what the coroutines return, as each one finishes. Raises `Stopping`.

        At most `several` run at once; the loop takes the next from `begun` when there is room. If `begun` yields None,
        the loop asks it again after one of the running coroutines has finished. The loop handles incoming messages
        while coroutines wait, but not while the caller works on a value.
        """
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
            self.cancel([task for task in tasks if not task.done()])

    def _is_later(self, task: asyncio.Task[Any], line: CallSequence) -> bool:
        """Return True if `task` belongs to an item of a later step than `line`."""
        own = self._lines.get(task)
        return own is not None and own.step > line.step

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], context: Context | None = None
    ) -> asyncio.Task[T]:
        parent = CallSequence.present()
        context = context if context is not None else copy_context()
        if parent is None:
            return asyncio.Task(coroutine, loop=loop, context=context)
        line = CallSequence(parent.op, parent.step, parent.next())
        context.run(line.enter)
        task = asyncio.Task(coroutine, loop=loop, context=context)
        self._lines[task] = line
        return task

    def _task(self, coroutine: Coroutine[Any, Any, T], line: CallSequence) -> asyncio.Task[T]:
        context = copy_context()
        context.run(line.enter)
        return asyncio.Task(coroutine, loop=self._loop, context=context)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that goes on whenever the rank waits, and return it."""
        task = asyncio.Task(coroutine, loop=self._loop)
        self._tasks.add(task)
        self._selector.woken = True
        task.add_done_callback(self._ended)
        return task

    def wait(self, wait_ms: int) -> None:
        """Let the tasks go on until a message has come or the time is over."""
        handle = self._loop.call_later(wait_ms / 1000, self._loop.stop)
        try:
            self._loop.run_forever()
        finally:
            handle.cancel()

    @property
    def ending(self) -> bool:
        """True while the loop cancels tasks."""
        return self._selector.quiet

    @property
    def busy(self) -> bool:
        """True if there are tasks."""
        return bool(self._tasks)

    def close(self) -> None:
        """Cancel the tasks. Idempotent."""
        if not self._loop.is_closed():
            self.cancel(set(self._tasks))
            self._loop.close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def cancel(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Cancel `tasks`, and give them half a second to clean up."""
        self._selector.quiet = True
        try:
            for task in tasks:
                task.cancel()
            if tasks and not self._loop.is_closed():
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=0.5))
        finally:
            self._selector.quiet = False


class _Selector(selectors.DefaultSelector):
    """Waits for the rank's inbox and for the file descriptors of the loop.

    ZeroMQ signals a new message only once. So this selector empties the inbox before each wait while it is ``inside``
    an operator's coroutine. Otherwise it stops the loop, and the rank reads the inbox.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._inbox = endpoint.inbox
        self._fd = int(self._inbox.getsockopt(zmq.FD))
        self.register(self._fd, selectors.EVENT_READ, None)
        self.inside = self.quiet = self.woken = False
        self.on_block: dict[bool, Callable[[bool], None]] = dict.fromkeys((True, False), lambda begins: None)

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
        blocks = self.on_block[self.inside]
        blocks(True)
        found = super().select(wait)
        blocks(False)
        return self._mine(found)

    def _mine(self, found: list[tuple[selectors.SelectorKey, int]]) -> list[tuple[selectors.SelectorKey, int]]:
        return [(key, events) for key, events in found if key.fd != self._fd]
