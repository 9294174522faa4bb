"""Runs functions that judge a model's text in a process of their own, so that no text harms the rank."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_agents import AgentError
from rolemesh_processes.forking import Frames, fork_serving, how_ended, send
from rolemesh_verifiers.judging import told

__all__ = ["JudgedApartError", "apart", "score_tasks_apart"]

_LONGEST: Final = 1 << 24
"""Largest result in bytes."""
_REMEDY: Final = "mend it: a model's text may do this to code that evaluates it"


class JudgedApartError(Exception):
    """A function has raised an exception in its process. The text says which one."""


async def apart(work: Callable[[], Awaitable[Any]]) -> Any:
    """Return what `work` returns in a fork of this process, as JSON has it. Its other effects there are lost.

    Raises `AgentError` if it raises one, or ends its process, and `JudgedApartError` for any other exception. If this
    coroutine is cancelled, the process is killed.
    """
    loop, frames = asyncio.get_running_loop(), Frames(_LONGEST)
    pid, own = fork_serving(lambda to: _serve(to, work), quiet=False)
    try:
        own.setblocking(False)
        while data := await loop.sock_recv(own, 1 << 16):
            for _, body in frames.feed(data):
                return _result(body)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)  # it may live on without its socket
        raise AgentError(f"a reward function has ended its process with {how_ended(status)}", remedy=_REMEDY)
    except ValueError as error:
        raise AgentError(f"a reward function has returned {error}", remedy="let it return numbers") from None
    finally:
        own.close()
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _serve(to: socket.socket, work: Callable[[], Awaitable[Any]]) -> None:
    found: dict[str, Any]
    try:
        found = {"found": asyncio.run(_awaited(work))}
    except AgentError as error:
        found = {"what": error.what, "remedy": error.remedy}
    except BaseException as error:
        found = {"raised": told(error)}
    try:
        body = msgspec.json.encode(found)
    except TypeError as error:
        body = msgspec.json.encode({"what": f"a reward function has returned no number: {error}", "remedy": _REMEDY})
    send(to, b"D", body)


async def _awaited(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


def _result(body: bytes) -> Any:
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except UNDECODABLE as error:
        raise ValueError(f"what is no JSON: {error}") from None
    if "what" in found:
        raise AgentError(str(found["what"]), remedy=str(found.get("remedy") or _REMEDY))
    if "raised" in found:
        raise JudgedApartError(str(found["raised"]))
    return found.get("found")


def score_tasks_apart() -> None:
    """Let verifiers 0.4 call the metrics and rewards of tasks apart. Those that take the task's `runtime`, which is a
    live connection, stay in the rank; so do judges, which are calls of a model.
    """
    from verifiers.v1 import task
    from verifiers.v1.judge import Judge

    invoke_all = task.invoke_all
    if hasattr(invoke_all, "calls"):
        return

    async def one(function: Callable[..., Any], available: Mapping[str, Any]) -> Any:
        async def called() -> Any:
            (found,) = await invoke_all([function], available)
            return (
                {str(key): float(value) for key, value in found.items()} if isinstance(found, Mapping) else float(found)
            )

        stays = "runtime" in inspect.signature(function).parameters or isinstance(
            getattr(function, "__self__", None), Judge
        )
        if stays:
            (found,) = await invoke_all([function], available)
            return found
        return await apart(called)

    async def apart_all(functions: Sequence[Callable[..., Any]], available: Mapping[str, Any]) -> list[Any]:
        return list(await asyncio.gather(*(one(each, available) for each in functions)))

    apart_all.calls = invoke_all  # type: ignore[attr-defined]
    task.invoke_all = apart_all
