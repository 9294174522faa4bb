"""The process of one episode: it runs the methods one after the other in its main thread, as the rank asks."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import os
import pickle
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine, Generator
from itertools import islice
from types import coroutine
from typing import Any, Final

import msgspec

from rolemesh_agents.episodes.body import EpisodeBody
from rolemesh_agents.episodes.plain_errors import as_plain
from rolemesh_agents.episodes.worker import LateError, name_of
from rolemesh_processes.confinement import keep_files, limit_files, limit_memory
from rolemesh_processes.forking import Frames, send
from rolemesh_processes.semaphores import use_anonymous_memory

__all__ = ["ANSWER", "AWAITS", "IMPORTED", "STACKS", "STACK_SIGNAL", "STEP", "Direct", "serve_episode"]

ANSWER, STEP, AWAITS = b"A", b"S", b"W"
"""Messages to the rank: the end of a request; the name and limit of a method that begins; that it is a coroutine."""
STACKS: Final = b"T"
"""The first message: the descriptor in this process of the file to which `STACK_SIGNAL` writes its stack."""
IMPORTED: Final = b"I"
"""Before the answer to the begin of an episode: the modules that it has imported, before it had any text of a model."""
STACK_SIGNAL: Final = signal.SIGUSR2
MOST_BYTES = 100_000_000
"""Size of a file that an episode may write, or bytes that it may print to the log of its rank."""
_LONGEST: Final = 1 << 31


class Direct:
    """Runs functions in the main thread, without an event loop around them: `signal` works, and so does `asyncio.run`.

    It is for `_Episode`, which carries out what `run` yields.
    """

    busy = False

    @coroutine
    def run(self, limit: float, function: Callable[..., Any], *args: Any) -> Generator[Any, Any, Any]:
        """See `Runner.run`. A function that is late is not stopped: the rank ends the process."""
        return (yield limit, function, args)

    def close(self) -> None:
        """See `Runner.close`."""


def serve_episode(own: socket.socket, *, body: EpisodeBody, memory_mb: float | None) -> None:
    """Serve requests until the rank closes the socket."""
    gc.freeze()
    if memory_mb is not None:
        limit_memory(int(memory_mb * 1e6))
    before = len(sys.modules)
    if not body.writes:
        os.environ["TMPDIR"] = tempfile.tempdir = str(body.folder)
    stacks = os.memfd_create("stacks")
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    send(own, STACKS, stacks.to_bytes(4, "little"))
    loop, frames = asyncio.new_event_loop(), Frames(_LONGEST)
    asyncio.set_event_loop(loop)
    while data := _received(own, loop):
        for _, request in frames.feed(data):
            method, args = pickle.loads(request)
            try:
                found = msgspec.msgpack.encode({"answer": _driven(getattr(body, method)(*args), own, loop)})
                if method in ("begin", "restore"):
                    # From the end: a look at each name would copy the pages of all of them.
                    new = [*islice(reversed(sys.modules), max(0, len(sys.modules) - before))][::-1]
                    send(own, IMPORTED, msgspec.msgpack.encode(new))
                    if not body.writes:
                        keep_files((str(body.folder), os.devnull))
                        limit_files(MOST_BYTES)
                        use_anonymous_memory()
            except Exception as error:
                found = msgspec.msgpack.encode({"error": as_plain(error)})
            send(own, ANSWER, found)


def _received(own: socket.socket, loop: asyncio.AbstractEventLoop) -> bytes:
    """Wait for a request. Tasks that the episode has left running go on meanwhile."""
    if not asyncio.all_tasks(loop):
        return own.recv(1 << 20)
    own.setblocking(False)
    try:
        return loop.run_until_complete(loop.sock_recv(own, 1 << 20))
    finally:
        own.setblocking(True)


def _driven(work: Coroutine[Any, Any, Any], own: socket.socket, loop: asyncio.AbstractEventLoop) -> Any:
    """Return the result of a method of the body, and carry out what it yields."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            limit, function, args = work.send(value) if error is None else work.throw(error)
        except StopIteration as done:
            return done.value
        value = error = None
        process = os.getpid()
        send(own, STEP, msgspec.msgpack.encode((name_of(function), limit)))
        try:
            value = function(*args)
            if inspect.isawaitable(value):
                send(own, AWAITS)
                value = loop.run_until_complete(_within(value, limit, name_of(function)))
        except BaseException as raised:  # also SystemExit: the episode goes on
            error = raised if isinstance(raised, Exception) else RuntimeError(f"it raised {raised!r}")
        if os.getpid() != process:
            os._exit(0)  # the function has forked, and this is the child


async def _within(work: Any, limit: float, name: str) -> Any:
    try:
        async with asyncio.timeout(limit) as late:
            return await work
    except TimeoutError:
        if late.expired():
            raise LateError(f"{name} has not returned within {limit:g} s") from None
        raise
