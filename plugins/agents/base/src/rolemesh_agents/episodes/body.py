"""One episode: its object, its sandbox, and what runs its methods. It is in a process of its own, or in the rank."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from rolemesh_agents.actions import ToolCall
from rolemesh_agents.contract import breach
from rolemesh_agents.conversations.action_log import LoggedAction, digest
from rolemesh_agents.environment import Episode, Task
from rolemesh_agents.episodes.answers import as_observation, as_outcome, as_reward, as_start
from rolemesh_agents.episodes.worker import LateError
from rolemesh_agents.sandbox import Limits, Sandbox

__all__ = ["CLOSE_S", "EpisodeBody", "Runner", "SandboxPlace"]

CLOSE_S: Final = 10.0
"""Seconds that an episode has to close."""


class SandboxPlace(msgspec.Struct, frozen=True):
    """A new sandbox for an episode, and its limits."""

    sandbox: Sandbox
    limits: Limits


class Runner(Protocol):
    """Runs the methods of one episode, one after the other."""

    @property
    def busy(self) -> bool:
        """True if a function that was late still runs."""

    async def run(self, limit: float, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function` returns, within `limit` seconds. Raises `LateError`, and the function's own errors."""

    def close(self) -> None:
        """Run no other function."""


class EpisodeBody:
    """An episode. Methods return plain values and raise the episode's errors and `LateError`."""

    def __init__(
        self, episode: Episode, place: SandboxPlace | None, runner: Runner, *, content_bytes: int, state_bytes: int
    ) -> None:
        """`content_bytes`: longest answer of a tool. `state_bytes`: largest snapshot that is kept."""
        self._episode, self._place, self._runner = episode, place, runner
        self._content_bytes, self._state_bytes = content_bytes, state_bytes
        self.folder: Path | None = None
        """The folder of its sandbox, or its folder for temporary files."""

    @property
    def writes(self) -> bool:
        """Whether it may change all files."""
        return self._episode.writes or self._place is not None

    async def begin(self, task: Task, seed: int, limit: float) -> dict[str, Any]:
        """Reset the episode."""
        began = time.monotonic()
        await self._open(task, limit)
        start = await self._runner.run(limit, self._episode.reset, task, seed)
        hears = {"hears": True} if type(self._episode).hear is not Episode.hear else {}
        return as_start(start) | hears | await self._about(began, limit)

    async def act(self, kind: str, given: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Carry out an action."""
        began = time.monotonic()
        if kind == "reply":
            answer = as_outcome(await self._runner.run(limit, self._episode.reply, given["content"]))
            return answer | await self._about(began, limit)
        call = ToolCall(given["name"], given["arguments"], given["id"])
        if (turn := given.get("turn")) is not None:
            calls = msgspec.convert(turn[1], list[ToolCall])
            await self._runner.run(limit, self._episode.hear, turn[0], calls)
        found = await self._runner.run(limit, self._episode.call, call)
        return as_observation(found, self._content_bytes) | await self._about(began, limit)

    async def reward(self, limit: float) -> dict[str, Any]:
        """Judge the episode."""
        began = time.monotonic()
        answer = as_reward(await self._runner.run(limit, self._episode.reward))
        return {**answer, "seconds": time.monotonic() - began}

    async def restore(
        self, task: Task, seed: int, state: bytes | None, actions: Sequence[LoggedAction], limit: float
    ) -> None:
        """Restore the episode from `state`, or from its begin, and repeat `actions`.

        Raises `AgentError` if a repeated action has another answer than before. An action that was late may have any.
        """
        if state is None:
            await self._open(task, limit)
            as_start(await self._runner.run(limit, self._episode.reset, task, seed))
        else:
            own, folder = msgspec.msgpack.decode(state, type=tuple[bytes, bytes | None])
            await self._open(task, limit, folder)
            await self._runner.run(limit, self._episode.restore, own)
        for at, action in enumerate(actions):
            try:
                answer = await self.act(action.kind, action.given, action.limit)
            except LateError:
                if action.expected:
                    raise
                continue
            if action.expected and digest(answer) != action.expected:
                name = action.given.get("name", action.kind)
                what = f"repeated action {at} ({name}) of the episode has another answer than before"
                remedy = "draw all chance from the seed, or return the state in `snapshot`"
                raise breach(what, remedy=remedy)

    async def close(self) -> None:
        """Close the episode and its sandbox. Errors are dropped."""
        with contextlib.suppress(Exception):
            await self._runner.run(CLOSE_S, self._episode.close)
        if self._place is not None:
            with contextlib.suppress(Exception):
                await self._runner.run(CLOSE_S, self._place.sandbox.close)

    def release(self) -> None:
        """Close them in this thread, beside a method that hangs."""
        with contextlib.suppress(Exception):
            self._episode.close()
        if self._place is not None:
            with contextlib.suppress(Exception):
                self._place.sandbox.close()

    async def _open(self, task: Task, limit: float, state: bytes | None = None) -> None:
        if self._place is None or self.folder is None:
            return
        sandbox = self._place.sandbox
        if image := self._episode.image(task):
            sandbox.use_image(image)
        await self._runner.run(limit, sandbox.open, self.folder, self._place.limits)
        if state is not None:
            await self._runner.run(limit, sandbox.restore, state)
        self._episode.sandbox = sandbox

    async def _about(self, began: float, limit: float) -> dict[str, Any]:
        """Return the seconds since `began`, and the state, if it can be kept."""
        state = await self._state(limit)
        return {"state": state, "seconds": time.monotonic() - began}

    async def _state(self, limit: float) -> bytes | None:
        if type(self._episode).snapshot is Episode.snapshot:
            return None
        own = await self._runner.run(limit, self._episode.snapshot)
        if own is None:
            return None
        if not isinstance(own, bytes | bytearray | memoryview):
            raise breach(f"Episode.snapshot returned {type(own).__name__} instead of bytes or None")
        folder = None
        if self._place is not None:
            folder = await self._runner.run(limit, self._place.sandbox.snapshot)
            if folder is None:
                return None
        state = msgspec.msgpack.encode((bytes(own), folder))
        return state if len(state) <= self._state_bytes else None
