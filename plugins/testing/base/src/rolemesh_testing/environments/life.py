"""The process of an environment under test: it makes episodes, serves requests, and returns the answers.

As in a job, a ``def`` method runs in a thread, here in another one each time; an ``async def`` method runs in the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from rolemesh.api.import_ref import ImportRef
from rolemesh_agents import Environment, Episode, Limits, Observation, Outcome, Reward, Sandbox, Start, Task
from rolemesh_testing.environments.wire import (
    Act,
    Acted,
    Began,
    Begin,
    Close,
    Done,
    End,
    Ended,
    Judge,
    Judged,
    Look,
    Looked,
    Reply,
    Request,
    Restore,
    Save,
    Saved,
    SetUp,
    Together,
)
from rolemesh_testing.leftovers import files_below, still_running
from rolemesh_testing.raising import as_raised
from rolemesh_testing.serving import prepare_process, serve_requests
from rolemesh_testing.workloads.listed import Listed, made

__all__ = ["serve"]

T = TypeVar("T")


def serve(connection: Connection, _: int | None) -> NoReturn:
    """Serve requests until the connection closes."""
    life, loop = _Life(), asyncio.new_event_loop()
    decode = msgspec.msgpack.Decoder(Request).decode
    serve_requests(connection, lambda request: loop.run_until_complete(_encoded(life, decode(request))))


async def _encoded(life: _Life, request: Request) -> bytes:
    """Serve a request. An exception of the environment is a valid answer, also if no message can hold its value."""
    try:
        return msgspec.msgpack.encode(await life.answer(request))
    except (Exception, SystemExit) as error:
        return msgspec.msgpack.encode(as_raised(error))


class _Life:
    def __init__(self) -> None:
        self._environment: Environment | None = None
        self._sandbox: Listed | None = None
        self._folder, self._base = Path(), ""
        self._episodes: dict[int, Episode] = {}
        self._boxes: dict[int, Sandbox] = {}
        self._open: set[str] = set()

    async def answer(self, request: Request) -> Reply:
        """Serve a request."""
        match request:
            case SetUp():
                self._set_up(request)
            case Look():
                return self._look(request)
            case Begin():
                start = _is(await _run(self._new(request.episode).reset, request.task, request.seed), Start, "reset")
                return Began(msgspec.structs.replace(start, messages=list(start.messages), tools=list(start.tools)))
            case Act():
                return _acted([await self._act(request)])
            case Together():
                return _acted(list(await asyncio.gather(*map(self._act, request.acts))))
            case Judge():
                return Judged(_finite(await _run(self._episodes[request.episode].reward)))
            case Save():
                state = await _run(self._episodes[request.episode].snapshot)
                return Saved(None if state is None else _is(state, bytes, "snapshot"))
            case Restore():
                await _run(self._new(request.episode).restore, request.state)
            case Close():
                if request.unused:
                    self._new(request.episode)
                await self._close(request.episode)
            case End():
                return await self._end()
        return Done()

    def _set_up(self, order: SetUp) -> None:
        prepare_process(order.folder)
        cls: Any = ImportRef(order.target).resolve()
        self._folder, self._base, self._sandbox = Path(order.folder), order.base, order.sandbox
        self._environment = cls(cls.Options.model_validate(order.options, context={"base": order.base}))

    @property
    def environment(self) -> Environment:
        assert self._environment is not None
        return self._environment

    def _look(self, order: Look) -> Looked:
        split: Any = order.split
        size, found = self.environment.size(split), []
        for number in order.numbers:
            if size is None or number < size:
                data = self.environment.task(split, number, order.seed)
                assert not isinstance(data, Task), "task() returns a Task; return its data alone: return data"
                found.append(json.dumps([number, data, split], sort_keys=True, allow_nan=False))
        return Looked(size, tuple(found))

    def _new(self, number: int) -> Episode:
        if not self._open:
            self._open = {*_open_files()}
        episode: Episode = _is(self.environment.episode(), Episode, "episode")  # type: ignore[type-abstract]
        self._episodes[number] = episode
        if self._sandbox is not None:
            box: Sandbox = made(self._sandbox, self._base)
            folder = Path(tempfile.mkdtemp(prefix="sandbox-", dir=self._base))
            box.open(folder, Limits.model_validate({}))
            episode.sandbox = self._boxes[number] = box
        return episode

    async def _act(self, act: Act) -> Observation | Outcome:
        episode = self._episodes[act.episode]
        if act.call is not None:
            return _is(await _run(episode.call, act.call), Observation, "call")
        outcome = _is(await _run(episode.reply, act.reply), Outcome, "reply")
        return msgspec.structs.replace(outcome, messages=list(outcome.messages))

    async def _close(self, number: int) -> None:
        await _run(self._episodes.pop(number).close)
        if number in self._boxes:
            self._boxes.pop(number).close()

    async def _end(self) -> Ended:
        for number in sorted(self._episodes):
            await self._close(number)
        self.environment.close()
        await asyncio.get_running_loop().shutdown_default_executor()
        threads, children = still_running()
        daemons = tuple(t.name for t in threading.enumerate() if t.daemon and t is not threading.main_thread())
        opened = tuple(sorted({*_open_files()} - self._open)) if self._open else ()
        return Ended((*threads, *daemons), children, opened, files_below(self._folder))


async def _run(method: Callable[..., T], *arguments: Any) -> T:
    """Call a method of an episode: in a new thread, or in the loop if it is ``async def``."""
    if inspect.iscoroutinefunction(method):
        return await method(*arguments)  # type: ignore[no-any-return]
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        try:
            found = method(*arguments)
        except BaseException as error:
            loop.call_soon_threadsafe(ended.set_exception, error)
        else:
            loop.call_soon_threadsafe(ended.set_result, found)

    thread = threading.Thread(target=work, name="episode", daemon=True)
    thread.start()
    found = await ended
    thread.join()
    return await found if inspect.isawaitable(found) else found  # type: ignore[no-any-return]


def _is(value: Any, kind: type[T], method: str) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{method}() returned a {type(value).__name__}, not {kind.__module__}.{kind.__qualname__}")
    return value


def _finite(found: Any) -> Reward:
    reward = _is(found, Reward, "reward")
    for name, value in {"value": reward.value, **{f"parts[{name!r}]": v for name, v in reward.parts.items()}}.items():
        real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not real:
            raise ValueError(f"{name} of the reward is {value!r}, which is no finite number")
    if reward.success not in (True, False, None):
        raise ValueError(f"success of the reward is {reward.success!r}, which is neither a bool nor None")
    return msgspec.structs.replace(reward, value=float(reward.value), parts=dict(reward.parts))


def _acted(found: list[Observation | Outcome]) -> Acted:
    observations = tuple(each if isinstance(each, Observation) else None for each in found)
    return Acted(observations, tuple(each if isinstance(each, Outcome) else None for each in found))


def _open_files() -> list[str]:
    """Return the targets of this process's descriptors, each with the number of descriptors that have it."""
    counted: dict[str, int] = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        kind = target.partition(":[")[0]  # pipe:[1234] and socket:[1234] have another number each time
        if not target.startswith("/proc/"):
            counted[kind] = counted.get(kind, 0) + 1
    return [f"{target} ({number})" for target, number in counted.items()]
