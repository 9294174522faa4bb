"""Programs in sandboxes: each reaches the gateway over a socket that listens in its own network."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.workload import RankContext
from rolemesh_agents import AgentError, Limits, Sandbox, SandboxLostError
from rolemesh_gateway.programs import ProgramResult

__all__ = ["ADDRESS", "Client", "SandboxedProgram", "limits_of", "parent_of_folders", "try_client"]

PORT = 61100
"""Port of the gateway in each sandbox: above those that Linux gives to connections."""
ADDRESS = f"http://127.0.0.1:{PORT}"
Attach = Callable[[socket.socket], Awaitable[None]]
"""Answers the connections of a socket that listens, in the loop of the rank."""


class Client(msgspec.Struct, frozen=True):
    """A program with its environment variables, its input, and the files that it can read."""

    command: Sequence[str]
    variables: Mapping[str, str]
    stdin: str
    visible: Sequence[Path]

    def run(self, sandbox: Sandbox, on_listen: Callable[[socket.socket], None]) -> ProgramResult:
        """Run it to its end in an open sandbox."""
        found = sandbox.run_client(
            self.command, on_listen, port=PORT, env=self.variables, stdin=self.stdin, visible=self.visible
        )
        return ProgramResult(found.code, found.ended, found.output, found.errors, found.cut)


class SandboxedProgram:
    """A running program with a sandbox of its own, in a thread. Its folder and all its processes go with it.

    Starting and ending it make no task of the operator.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        limits: Limits,
        client: Client,
        parent: Path,
        attach: Attach,
        on_end: Callable[[ProgramResult], None],
    ) -> None:
        self._sandbox, self._limits, self._client, self._attach = sandbox, limits, client, attach
        self._folder = Path(tempfile.mkdtemp(prefix="program-", dir=parent))
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._asked = False
        self._open = threading.Lock()
        """Held until the sandbox is open, so that `close` does not come before."""
        self._thread = threading.Thread(target=self._run, name="program in a sandbox", daemon=True)
        self._thread.start()

    def ask_to_end(self) -> None:
        """End all processes of the program, without waiting for it."""
        if not self._ended.done() and not self._asked:
            self._asked = True
            threading.Thread(target=self._close, daemon=True).start()

    async def end(self) -> None:
        """End the program at once, and wait until nothing is left of it. It may be called twice."""
        self.ask_to_end()
        await asyncio.shield(self._ended)

    def _run(self) -> None:
        """Run the program from the first to the last moment of its sandbox."""
        result = self._result()
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(RuntimeError):  # the loop has ended with its rank
            self._loop.call_soon_threadsafe(self._finish, result)

    def _result(self) -> ProgramResult:
        try:
            with self._open:
                self._sandbox.open(self._folder, self._limits)
            return ProgramResult(None, "asked") if self._asked else self._client.run(self._sandbox, self._listen)
        except Exception as error:
            ended = "asked" if self._asked else "guard" if isinstance(error, SandboxLostError) else "sandbox"
            return ProgramResult(None, ended, errors=str(error))
        finally:
            self._sandbox.close()

    def _listen(self, listener: socket.socket) -> None:
        """Let the loop answer the connections. Its tasks do not count as those of the operator: this thread has an
        empty context.
        """
        asyncio.run_coroutine_threadsafe(_awaited(self._attach(listener)), self._loop).result()

    def _close(self) -> None:
        with self._open:
            self._sandbox.close()

    def _finish(self, result: ProgramResult) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
            self._on_end(result)


def limits_of(options: Any) -> Limits:
    """Return the limits of a sandbox of one program."""
    return Limits(
        seconds=options.seconds,
        memory_mb=options.memory_mb,
        processes=options.processes,
        output_kb=options.output_kb,
        disk_mb=options.disk_mb,
    )


def parent_of_folders(ctx: RankContext) -> str | None:
    """Return the folder for the folders of programs; None: that of the system for temporary files."""
    return str(ctx.tmp_dir) if ctx.tmp_dir != Path() else None


def try_client(ctx: RankContext, name: str, limits: Limits, visible: Sequence[Path]) -> None:
    """Run a program that does nothing in a sandbox. The rank's log says what the sandbox cannot enforce.

    Raises `AgentError` if the sandbox cannot run clients on this machine.
    """
    sandbox: Sandbox = ctx.plugins["sandboxes", name]()
    trial = Path(tempfile.mkdtemp(prefix="trial-", dir=parent_of_folders(ctx)))
    try:
        sandbox.open(trial, limits)
        missing = " ".join(sandbox.unenforced())
        found = Client(["true"], {}, "", visible).run(sandbox, socket.socket.close)
    finally:
        sandbox.close()
        shutil.rmtree(trial, ignore_errors=True)
    if found.code:
        what = f"the sandbox {name} cannot run a program: {found.errors.strip() or found.output.strip()}"
        raise AgentError(what, remedy="make sure that the program `true` runs in it")
    if missing:
        ctx.log.warning("the sandbox %s does not enforce everything here: %s", name, missing)


async def _awaited(found: Awaitable[None]) -> None:
    await found
