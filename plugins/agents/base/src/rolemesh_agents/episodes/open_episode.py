"""One open episode, as the rank sees it: in a process of its own, or in a thread of the rank."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rolemesh_agents.conversations.action_log import LoggedAction
from rolemesh_agents.environment import Episode, Task
from rolemesh_agents.episodes.body import EpisodeBody, SandboxPlace
from rolemesh_agents.episodes.process import EpisodeProcess
from rolemesh_agents.episodes.serving import Direct, serve_episode
from rolemesh_agents.episodes.worker import LateError, Worker

__all__ = ["OpenEpisode", "SandboxPlace"]


class OpenEpisode:
    """An episode that runs beside the rank. Methods return plain values and raise the episode's errors and `LateError`.

    The process is forked from this one, with the episode in it, when the episode begins.
    """

    def __init__(
        self,
        episode: Episode,
        place: SandboxPlace | None,
        *,
        content_bytes: int,
        state_bytes: int,
        memory_mb: float | None = None,
        below: Path | None = None,
    ) -> None:
        """`content_bytes`: longest answer of a tool. `state_bytes`: largest snapshot that is kept. `memory_mb`: memory
        that the process may take beyond what it has at its start; None: no limit. `below`: a place for its folder."""
        self._episode, self._place, self._memory_mb, self._below = episode, place, memory_mb, below
        self._worker = None if episode.own_process else Worker()
        self._body = EpisodeBody(
            episode, place, self._worker or Direct(), content_bytes=content_bytes, state_bytes=state_bytes
        )
        self._process: EpisodeProcess | None = None
        self._closed = False

    @property
    def hangs(self) -> bool:
        """True if a method that was late still runs."""
        runs = self._worker or self._process
        return runs is not None and runs.busy

    def runs(self, episode: Episode) -> bool:
        """Return whether this is `episode`."""
        return self._episode is episode

    async def begin(self, task: Task, seed: int, limit: float) -> dict[str, Any]:
        """Reset the episode."""
        self._body.folder = self._made_folder()
        return await self._asked(limit, "begin", task, seed, limit)

    async def act(self, kind: str, given: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Carry out an action. A late call of a tool has an answer, too, and the episode goes on."""
        before, began = self.hangs, time.monotonic()
        try:
            return await self._asked(limit, "act", kind, given, limit)
        except LateError:
            if before or kind != "call":
                raise
        content = f"the tool {given['name']} did not answer within {limit:g} s"
        return {"content": content, "done": False, "late": True, "seconds": time.monotonic() - began}

    async def reward(self, limit: float) -> dict[str, Any]:
        """Judge the episode."""
        return await self._asked(limit, "reward", limit)

    async def restore(
        self, task: Task, seed: int, state: bytes | None, actions: Sequence[LoggedAction], limit: float
    ) -> None:
        """Restore the episode from `state`, or from its begin, and repeat `actions`.

        Raises `AgentError` if a repeated action has another answer than before. An action that was late may have any.
        """
        self._body.folder = self._made_folder()
        await self._asked(limit, "restore", task, seed, state, actions, limit)

    async def close(self) -> None:
        """Close the episode. Idempotent; errors of the episode are dropped."""
        if self._closed:
            return
        self._closed = True
        if self._process is not None:
            await self._process.close()
            threading.Thread(target=self._remove_folder, daemon=True).start()
        elif self._worker is not None and self._worker.busy:
            threading.Thread(target=self._release, daemon=True).start()
        elif self._worker is not None:
            await self._body.close()
            self._worker.close()
            self._remove_folder()

    async def _asked(self, limit: float, method: str, *args: Any) -> dict[str, Any]:
        if self._worker is not None:
            return dict(await getattr(self._body, method)(*args) or {})
        if self._process is None:
            self._process = EpisodeProcess(partial(serve_episode, body=self._body, memory_mb=self._memory_mb))
        return await self._process.ask(limit, method, *args)

    def _made_folder(self) -> Path | None:
        if self._place is None and self._worker is not None:
            return None
        return Path(tempfile.mkdtemp(prefix="episode-", dir=self._below))

    def _remove_folder(self) -> None:
        if self._body.folder is not None:
            shutil.rmtree(self._body.folder, ignore_errors=True)

    def _release(self) -> None:
        """Close an episode whose thread hangs, from another thread."""
        self._body.release()
        self._remove_folder()
        if self._worker is not None:
            self._worker.close()
