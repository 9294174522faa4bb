"""The rank's side of an episode that has a process of its own."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, TypedDict

import msgspec

from rolemesh_agents.episodes.body import CLOSE_S
from rolemesh_agents.episodes.plain_errors import EpisodeRaisedError, PlainError, as_error
from rolemesh_agents.episodes.serving import ANSWER, AWAITS, IMPORTED, STACK_SIGNAL, STACKS, STEP
from rolemesh_agents.episodes.standing import innermost
from rolemesh_agents.episodes.worker import LateError
from rolemesh_agents.errors import SandboxLostError
from rolemesh_processes.forking import Frames, fork_serving, how_ended

__all__ = ["EpisodeProcess"]

_LONGEST: Final = 1 << 28
"""Largest answer of an episode in bytes."""
_LOOKS: Final = 50
"""Number of looks for the place of a late episode, in one second."""
_CANCEL_S: Final = 5.0
"""Seconds that a coroutine that is late has to end."""
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "begin": frozenset({"messages", "tools", "state", "seconds"}),
    "act": frozenset({"done", "seconds"}),
    "reward": frozenset({"value", "parts", "success", "seconds"}),
}
"""The keys that an answer has at least, by method."""


class _Answer(TypedDict, total=False):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    hears: bool
    content: str
    done: bool
    late: bool
    state: bytes | None
    seconds: float
    value: float
    parts: dict[str, float]
    success: bool | None


class _Told(msgspec.Struct, frozen=True):
    answer: _Answer | None = None
    error: PlainError | None = None


_told = msgspec.msgpack.Decoder(_Told)
_step = msgspec.msgpack.Decoder(tuple[str, float])


class EpisodeProcess:
    """Asks the process of an episode, and checks its answers, because a model's text may have changed it."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self.pid, self._socket = fork_serving(serve, quiet=False)
        self._socket.setblocking(False)
        self._frames = Frames(_LONGEST)
        self._messages: list[tuple[bytes, bytes]] = []
        self._owed = 0
        """Number of answers that have not come."""
        self._step = ("the episode", 0.0)
        self._stacks = os.devnull
        self._begins = True
        self._ended: int | None = None

    @property
    def busy(self) -> bool:
        """Whether it still works on a request that was late."""
        return self._owed > 0 and self._ended is None

    async def ask(self, limit: float, method: str, *args: Any) -> dict[str, Any]:
        """Return the answer to a request, each of whose steps has `limit` seconds.

        A request that was late has the same time to end; its answer is dropped. Raises what the episode raises,
        `LateError`, and `SandboxLostError` if the process was killed.
        """
        deadline = asyncio.get_running_loop().time() + limit
        self._begins = method in ("begin", "restore")
        while self._owed:
            await self._answer(limit, deadline)
        await self._sent(pickle.dumps((method, args)), limit)
        found = await self._answer(limit, deadline)
        try:
            told = _told.decode(found)
            if told.error is not None:
                raise as_error(told.error)
            answer: dict[str, Any] = {**(told.answer or {})}
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._nonsense(str(error)) from None
        finite = all(math.isfinite(each) for each in (answer.get("value", 0.0), *answer.get("parts", {}).values()))
        if not finite or _KEYS.get(method, frozenset()) - answer.keys():
            raise self._nonsense(f"{method} has no answer")
        return answer

    async def close(self) -> None:
        """Let the episode close, and end the process."""
        if self._ended is None and not self._owed:
            with suppress(Exception):
                await self.ask(CLOSE_S, "close")
        self.end()

    def end(self) -> None:
        """Kill the process and the processes of its group. Idempotent. Returns at once."""
        if self._ended is None:
            self._ended = signal.SIGKILL
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            threading.Thread(target=self._reap, daemon=True).start()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for an answer
        self._socket.close()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    async def _sent(self, body: bytes, limit: float) -> None:
        loop = asyncio.get_running_loop()
        self._owed += 1
        try:
            async with asyncio.timeout(limit + _CANCEL_S):
                await loop.sock_sendall(self._socket, b"R" + len(body).to_bytes(4, "little") + body)
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.end()
                raise self._late(limit) from None
            # Else it has ended, as its socket says next.
        except BaseException:
            self.end()  # half a request has been sent
            raise

    async def _answer(self, limit: float, deadline: float) -> bytes:
        """Return the next answer. Each step has `limit` seconds, and the first one until `deadline`."""
        loop, more = asyncio.get_running_loop(), 0.0
        while True:
            while self._messages:
                kind, body = self._messages.pop(0)
                if kind == ANSWER and self._owed:
                    self._owed -= 1
                    return body
                if kind == STEP:
                    with suppress(msgspec.DecodeError):
                        self._step = _step.decode(body)
                    deadline, more = loop.time() + limit, 0.0
                elif kind == AWAITS:
                    more = _CANCEL_S
                elif kind == IMPORTED and self._begins:
                    _import_too(body)
                elif kind == STACKS:
                    self._stacks = f"/proc/{self.pid}/fd/{int.from_bytes(body, 'little')}"
            if not await _readable(self._socket.fileno(), deadline + more - loop.time()):
                raise self._late(limit, await self._place())
            self._take()

    def _take(self) -> None:
        data = b""
        try:
            data = self._socket.recv(1 << 20)
            self._messages += self._frames.feed(data)
        except BlockingIOError:
            return
        except OSError:
            pass
        except ValueError as error:
            raise self._nonsense(str(error)) from None
        if not data:
            raise self._dead()

    async def _place(self) -> str:
        """Return the line in which the episode is, as its process writes it when it gets a signal."""
        with suppress(OSError):
            os.kill(self.pid, STACK_SIGNAL)
            for _ in range(_LOOKS):
                with open(self._stacks, "rb") as file:
                    if found := innermost(file.read(1 << 16).decode(errors="replace")):
                        return f"; it is in {found}"
                await asyncio.sleep(1 / _LOOKS)
        return ""

    def _late(self, limit: float, place: str = "") -> LateError:
        return LateError(f"{self._step[0]} has not returned within {limit:g} s{place}")

    def _dead(self) -> Exception:
        """Return the error for a process that has ended by itself."""
        if self._ended is not None:
            return EpisodeRaisedError("the episode is closed", "", "")
        self._ended, self._owed = os.waitpid(self.pid, 0)[1], 0
        self._socket.close()
        how = f"the episode's process has ended with {how_ended(self._ended)} in {self._step[0]}"
        if os.WIFSIGNALED(self._ended) and os.WTERMSIG(self._ended) == signal.SIGKILL:
            return SandboxLostError(how, remedy="look into the rank's log; perhaps the machine had no memory left")
        return EpisodeRaisedError(how, "", "")

    def _nonsense(self, why: str) -> EpisodeRaisedError:
        self.end()
        return EpisodeRaisedError(f"the episode's process has sent what no episode sends: {why}", "", "")


def _import_too(names: bytes) -> None:
    """Import modules that an episode has imported, so that the processes of the next ones have them."""
    with suppress(msgspec.DecodeError):
        for name in msgspec.msgpack.decode(names, type=list[str]):
            if name not in sys.modules:
                with suppress(Exception):
                    import_module(name)


async def _readable(own: int, seconds: float) -> bool:
    """Wait until a descriptor can be read. Return false if it cannot in time."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    if own < 0:
        return True
    loop.add_reader(own, lambda: None if ready.done() else ready.set_result(None))
    try:
        return bool((await asyncio.wait([ready], timeout=max(seconds, 0.0)))[0])
    finally:
        loop.remove_reader(own)
