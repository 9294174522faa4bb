"""Tasksets of verifiers 0.4: their tasks, their servers, and their episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

from rolemesh_agents import Reward
from rolemesh_verifiers.apart import score_tasks_apart
from rolemesh_verifiers.configs import configured
from rolemesh_verifiers.desk import Desk
from rolemesh_verifiers.judging import judged
from rolemesh_verifiers.options import VerifiersOptions
from rolemesh_verifiers.play import Play

__all__ = ["Taskset"]

POLL_S = 0.2
"""Seconds between two looks at a server of tools that starts."""


class Taskset:
    """An environment of verifiers with the tasks of one split, and the agent that the model plays."""

    apart = False

    def __init__(self, options: VerifiersOptions, split: Literal["train", "eval"]) -> None:
        config, self.agent = configured(options, split)
        _notice_dead_servers()
        score_tasks_apart()
        from verifiers.v1.utils.loaders import load_environment

        self.environment: Any = load_environment(config)
        self._tasks: list[Any] = []
        self._bounded = bool(self.environment.taskset.bounded)
        self._most = options.most
        self._left = iter(self.environment.taskset if self._bounded else self.environment.taskset.take(options.most))
        self._lock = asyncio.Lock()
        self._held: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._taken(1)  # most load all of their data here

    def count(self, split: Literal["train", "eval"]) -> int:
        """Return the number of tasks. Both splits have the same ones."""
        return len(self._taken(None)) if self._bounded else self._most

    def task(self, split: Literal["train", "eval"], index: int) -> tuple[Any, str]:
        """Return a task of verifiers and its hash."""
        found = self._taken(index + 1)[index]
        return found, found.hash

    async def play(self, desk: Desk, once: Sequence[str]) -> Play:
        """Return a new episode, which has not started."""
        async with self._lock:
            if self._held is None:
                up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                held = asyncio.create_task(self._hold(up))
                held.add_done_callback(lambda done: up.done() or up.set_exception(done.exception() or EOFError()))
                await up
                self._held = held
        return TasksetPlay(self.environment, self.agent, desk, once)

    async def close(self) -> None:
        """End the servers of the environment."""
        self._over.set()
        if self._held is not None:
            await asyncio.gather(self._held, return_exceptions=True)

    def _taken(self, count: int | None) -> list[Any]:
        """Return all tasks, or at least the first `count` of them."""
        self._tasks += islice(self._left, None if count is None else max(0, count - len(self._tasks)))
        return self._tasks

    async def _hold(self, up: asyncio.Future[None]) -> None:
        async with self.environment.serving():
            up.set_result(None)
            await self._over.wait()


class TasksetPlay(Play):
    """An episode of a taskset. The model plays one agent, in one run of it."""

    def __init__(self, environment: Any, agent: str, desk: Desk, once: Sequence[str]) -> None:
        super().__init__(desk, once)
        self._environment, self._agent = environment, agent
        self._traces: list[Any] = []

    async def _run(self, task: Any) -> Any:
        from verifiers.v1.clients import EvalClientConfig, ModelContext

        client = EvalClientConfig(base_url=self._desk.url, api_key_var="ROLEMESH_KEY")
        return await self._environment.run_episode(task, ModelContext("policy", client), on_trace=self._traced)

    def _judged(self, result: Any, success: float | None) -> Reward:
        return judged(result, self._traces[0] if self._traces else None, success)

    def _traced(self, trace: Any) -> None:
        """Take note of a new run of an agent."""
        if trace.agent.name != self._agent:
            return
        if self._traces:
            self._fail("the environment has ended the model's run, and begins another one")
            return
        self._traces.append(trace)
        self._opened(trace.id)
        trace.watch(self._changed)

    def _changed(self, trace: Any) -> None:
        """Note that verifiers begins to judge: it asks for no other turn then."""
        if trace.timing.finalize.start:
            self._ended()


def _notice_dead_servers() -> None:
    """Let verifiers give a server of tools up when its process ends. It would wait 180 s for the server's port."""
    from verifiers.v1.errors import ToolsetError
    from verifiers.v1.mcp import launch

    wait = getattr(launch, "_read_back_port", None)
    if wait is None or hasattr(wait, "waits"):
        return

    async def waiting(runtime: Any, path: str) -> int:
        port = asyncio.ensure_future(wait(runtime, path))
        try:
            while not port.done():
                await asyncio.wait([port], timeout=POLL_S)
                ended = [each.returncode for each in getattr(runtime, "_background", ()) if each.returncode]
                if ended and not port.done():
                    raise ToolsetError(f"its process has ended with {ended[0]}")
            return int(port.result())
        finally:
            port.cancel()

    waiting.waits = wait  # type: ignore[attr-defined]
    launch._read_back_port = waiting
