"""The thread in which verifiers runs: its environments, the servers of their tools, and the desk of the model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from itertools import islice
from typing import Any, Literal, TypeAlias, TypeVar

from rolemesh_verifiers.configs import configured
from rolemesh_verifiers.desk import Desk
from rolemesh_verifiers.options import VerifiersOptions
from rolemesh_verifiers.play import Play

__all__ = ["Serving", "Split"]

T = TypeVar("T")
Split: TypeAlias = Literal["train", "eval"]


class Served:
    """An environment of verifiers with the tasks of one split, and the agent that the model plays."""

    def __init__(self, options: VerifiersOptions, split: Split) -> None:
        config, self.agent = configured(options, split)
        from verifiers.v1.utils.loaders import load_environment

        self.environment: Any = load_environment(config)
        self._tasks: list[Any] = []
        self._left = iter(self.environment.taskset if self.bounded else self.environment.taskset.take(options.most))
        self.lock = asyncio.Lock()
        self.held: asyncio.Task[None] | None = None
        self.over = asyncio.Event()

    @property
    def bounded(self) -> bool:
        """Whether the taskset has an end."""
        return bool(self.environment.taskset.bounded)

    def tasks(self, count: int | None = None) -> list[Any]:
        """Return all tasks, or at least the first `count` of them."""
        self._tasks += islice(self._left, None if count is None else max(0, count - len(self._tasks)))
        return self._tasks

    async def serve(self) -> None:
        """Hold the servers of the environment, once."""
        async with self.lock:
            if self.held is None:
                up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                held = asyncio.create_task(self._hold(up))
                held.add_done_callback(lambda done: up.done() or up.set_exception(done.exception() or EOFError()))
                await up
                self.held = held

    async def _hold(self, up: asyncio.Future[None]) -> None:
        async with self.environment.serving():
            up.set_result(None)
            await self.over.wait()


class Serving:
    """Starts the thread with the first use. All methods may be called in any other thread."""

    def __init__(self, options: VerifiersOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._served: dict[Split, Served] = {}
        self._desk = Desk()

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the thread."""
        with self._lock:
            if self._thread is None:
                up = threading.Event()
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._main(up)), name="verifiers", daemon=True
                )
                self._thread.start()
                up.wait()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def counted(self, split: Split) -> int:
        """Return the number of tasks of a split of the taskset."""
        served = self._of(split)
        return len(served.tasks()) if served.bounded else self._options.most

    async def task(self, split: Split, index: int) -> Any:
        """Return a task of verifiers."""
        return self._of(split).tasks(index + 1)[index]

    async def play(self, split: Split) -> Play:
        """Return a new episode, which has not started."""
        served = self._of(split)
        await served.serve()
        async with self._starting:
            if not self._desk.url:
                await self._desk.start()
        return Play(served.environment, self._context(), served.agent, self._desk, self._options.once)

    def close(self) -> None:
        """End all of it."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def _of(self, split: Split) -> Served:
        held = "eval" if split == "eval" and self._options.held_out is not None else "train"
        if held not in self._served:
            self._served[held] = Served(self._options, held)
        return self._served[held]

    def _context(self) -> Any:
        from verifiers.v1.clients import EvalClientConfig, ModelContext

        return ModelContext("policy", EvalClientConfig(base_url=self._desk.url, api_key_var="ROLEMESH_KEY"))

    async def _main(self, up: threading.Event) -> None:
        self._loop, self._over, self._starting = asyncio.get_running_loop(), asyncio.Event(), asyncio.Lock()
        up.set()
        await self._over.wait()
        for served in self._served.values():
            served.over.set()
        held = [served.held for served in self._served.values() if served.held is not None]
        await asyncio.gather(*held, return_exceptions=True)
        if self._desk.url:
            await self._desk.stop()
