"""One open episode: its object, its thread, its sandbox and its folder."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rolemesh_agents.actions import ToolCall
from rolemesh_agents.contract import breach
from rolemesh_agents.conversations.action_log import LoggedAction, digest
from rolemesh_agents.environment import Episode, Task
from rolemesh_agents.episodes.answers import as_observation, as_outcome, as_reward, as_start
from rolemesh_agents.episodes.worker import LateError, Worker
from rolemesh_agents.sandbox import Limits, Sandbox

__all__ = ["OpenEpisode", "SandboxPlace"]

CLOSE_S: Final = 10.0
"""Seconds that an episode has to close."""


class SandboxPlace(msgspec.Struct, frozen=True):
    """A new sandbox for an episode, its limits, and a place for its folder."""

    sandbox: Sandbox
    limits: Limits
    below: Path


class OpenEpisode:
    """An episode that runs in this rank. Methods return plain values and raise the episode's errors and `LateError`."""

    def __init__(self, episode: Episode, place: SandboxPlace | None, *, content_bytes: int, state_bytes: int) -> None:
        """`content_bytes`: longest answer of a tool. `state_bytes`: largest snapshot that is kept."""
        self._episode, self._place = episode, place
        self._content_bytes, self._state_bytes = content_bytes, state_bytes
        self._worker = Worker()
        self._folder: Path | None = None
        self._task: Task | None = None
        self._closed = False

    @property
    def hangs(self) -> bool:
        """True if a method that was late still runs."""
        return self._worker.busy

    def runs(self, episode: Episode) -> bool:
        """Return whether this is `episode`."""
        return self._episode is episode

    async def begin(self, task: Task, seed: int, limit: float) -> dict[str, Any]:
        """Reset the episode."""
        began = time.monotonic()
        self._task = task
        await self._open(limit)
        start = await self._worker.run(limit, self._episode.reset, task, seed)
        hears = {"hears": True} if type(self._episode).hear is not Episode.hear else {}
        return as_start(start) | hears | await self._about(began, limit)

    async def act(self, kind: str, given: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Carry out an action. A late call of a tool has an answer, too, and the episode goes on."""
        began = time.monotonic()
        if kind == "reply":
            answer = as_outcome(await self._worker.run(limit, self._episode.reply, given["content"]))
            return answer | await self._about(began, limit)
        call = ToolCall(given["name"], given["arguments"], given["id"])
        before = self._worker.busy
        try:
            if (turn := given.get("turn")) is not None:
                calls = msgspec.convert(turn[1], list[ToolCall])
                await self._worker.run(limit, self._episode.hear, turn[0], calls)
            found = await self._worker.run(limit, self._episode.call, call)
        except LateError:
            if before:
                raise
            content = f"the tool {call.name} did not answer within {limit:g} s"
            return {"content": content, "done": False, "late": True, "seconds": time.monotonic() - began}
        return as_observation(found, self._content_bytes) | await self._about(began, limit)

    async def reward(self, limit: float) -> dict[str, Any]:
        """Judge the episode."""
        began = time.monotonic()
        answer = as_reward(await self._worker.run(limit, self._episode.reward))
        return {**answer, "seconds": time.monotonic() - began}

    async def restore(
        self, task: Task, seed: int, state: bytes | None, actions: Sequence[LoggedAction], limit: float
    ) -> None:
        """Restore the episode from `state`, or from its begin, and repeat `actions`.

        Raises `AgentError` if a repeated action has another answer than before. An action that was late may have any.
        """
        self._task = task
        if state is None:
            await self._open(limit)
            as_start(await self._worker.run(limit, self._episode.reset, task, seed))
        else:
            own, folder = msgspec.msgpack.decode(state, type=tuple[bytes, bytes | None])
            await self._open(limit, folder)
            await self._worker.run(limit, self._episode.restore, own)
        for at, action in enumerate(actions):
            answer = await self.act(action.kind, action.given, action.limit)
            if action.expected and digest(answer) != action.expected:
                name = action.given.get("name", action.kind)
                what = f"repeated action {at} ({name}) of the episode has another answer than before"
                remedy = "draw all chance from the seed, or return the state in `snapshot`"
                raise breach(what, remedy=remedy)

    async def close(self) -> None:
        """Close the episode. Idempotent; errors of the episode are dropped."""
        if self._closed:
            return
        self._closed = True
        if self._worker.busy:
            threading.Thread(target=self._release, daemon=True).start()
            return
        with contextlib.suppress(Exception):
            await self._worker.run(CLOSE_S, self._episode.close)
        with contextlib.suppress(Exception):
            await self._worker.run(CLOSE_S, self._release_sandbox)
        self._worker.close()

    def _release(self) -> None:
        """Close an episode whose thread hangs, from another thread."""
        with contextlib.suppress(Exception):
            self._episode.close()
        self._release_sandbox()
        self._worker.close()

    def _release_sandbox(self) -> None:
        if self._place is not None:
            with contextlib.suppress(Exception):
                self._place.sandbox.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _open(self, limit: float, state: bytes | None = None) -> None:
        if self._place is None:
            return
        sandbox = self._place.sandbox
        self._folder = Path(tempfile.mkdtemp(prefix="episode-", dir=self._place.below))
        await self._worker.run(limit, sandbox.open, self._folder, self._place.limits)
        if state is not None:
            await self._worker.run(limit, sandbox.restore, state)
        self._episode.sandbox = sandbox

    async def _about(self, began: float, limit: float) -> dict[str, Any]:
        """Return the seconds since `began`, and the state, if it can be kept."""
        state = await self._state(limit)
        return {"state": state, "seconds": time.monotonic() - began}

    async def _state(self, limit: float) -> bytes | None:
        if type(self._episode).snapshot is Episode.snapshot:
            return None
        own = await self._worker.run(limit, self._episode.snapshot)
        if own is None:
            return None
        if not isinstance(own, bytes | bytearray | memoryview):
            raise breach(f"Episode.snapshot returned {type(own).__name__} instead of bytes or None")
        folder = None
        if self._place is not None:
            folder = await self._worker.run(limit, self._place.sandbox.snapshot)
            if folder is None:
                return None
        state = msgspec.msgpack.encode((bytes(own), folder))
        return state if len(state) <= self._state_bytes else None
