"""The thread in which verifiers runs: its environments, the servers of their tools, and the desk of the model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from rolemesh.errors import OptionsError
from rolemesh_verifiers.classic import Classic
from rolemesh_verifiers.desk import Desk
from rolemesh_verifiers.judging import told
from rolemesh_verifiers.loading import within
from rolemesh_verifiers.options import VerifiersOptions
from rolemesh_verifiers.play import Play
from rolemesh_verifiers.tasksets import Taskset

__all__ = ["Serving", "Split"]

T = TypeVar("T")
Split: TypeAlias = Literal["train", "eval"]


class Source(Protocol):
    """Tasks of verifiers, and episodes of them. All methods run in the thread of verifiers."""

    @property
    def apart(self) -> bool:
        """Whether the held-out tasks are a set of their own."""

    def count(self, split: Split) -> int:
        """Return the number of tasks."""

    def task(self, split: Split, index: int) -> tuple[Any, str]:
        """Return a task and a hash of its content."""

    async def play(self, desk: Desk, once: Sequence[str]) -> Play:
        """Return a new episode, which has not started."""

    async def close(self) -> None:
        """End what all episodes share."""


class Serving:
    """Starts the thread with the first use. All methods may be called in any other thread."""

    def __init__(self, options: VerifiersOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._sources: dict[Split, Source] = {}
        self._loads: dict[Split, asyncio.Task[None]] = {}
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
        """Return the number of tasks of a split. Raises `OptionsError` if they cannot be loaded."""
        source = await self._of(split)
        with self._loading_tasks():
            return source.count(split)

    async def apart(self) -> bool:
        """Return whether the held-out tasks are a set of their own."""
        return self._options.held_out is not None or (await self._of("eval")).apart

    async def task(self, split: Split, index: int) -> tuple[Any, str]:
        """Return a task of verifiers, and a hash of its content. Raises `OptionsError` if it cannot be loaded."""
        source = await self._of(split)
        with self._loading_tasks():
            return source.task(split, index)

    async def play(self, split: Split) -> Play:
        """Return a new episode, which has not started."""
        source = await self._of(split)
        async with self._starting:
            if not self._desk.url:
                await self._desk.start()
        return await source.play(self._desk, self._options.once)

    def close(self) -> None:
        """End all of it."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    async def _of(self, split: Split) -> Source:
        held: Split = "eval" if split == "eval" and self._options.held_out is not None else "train"
        if held not in self._loads or (self._loads[held].done() and held not in self._sources):
            self._loads[held] = asyncio.create_task(self._load(held))
        # An episode whose time is over leaves the loading to the next one.
        await asyncio.shield(self._loads[held])
        return self._sources[held]

    async def _load(self, split: Split) -> None:
        kind: type[Taskset | Classic] = Taskset if self._options.environment is None else Classic
        name, where = self._options.name, "taskset" if kind is Taskset else "environment"
        async with self._loading:
            with self._loading_tasks():
                make = partial(kind, self._options, split)
                self._sources[split] = await within(self._options.load_s, make, name, where)

    @contextmanager
    def _loading_tasks(self) -> Iterator[None]:
        try:
            yield
        except OptionsError:
            raise
        except Exception as error:
            where = "taskset" if self._options.environment is None else "environment"
            remedy = "install what it needs in the roles `tasks` and `environment`, and look at its settings"
            raise OptionsError(f"its tasks cannot be loaded: {told(error)}", where=where, remedy=remedy) from error

    async def _main(self, up: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._starting, self._loading = asyncio.Lock(), asyncio.Lock()
        up.set()
        await self._over.wait()
        for source in self._sources.values():
            await source.close()
        if self._desk.url:
            await self._desk.stop()
