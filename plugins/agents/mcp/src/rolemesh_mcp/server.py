"""One MCP server: its process, the connection over stdin and stdout, and calls from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rolemesh_agents import AgentError, Tool

__all__ = ["Loop", "Server", "ServerClosed", "as_text", "described"]

T = TypeVar("T")
SUPERVISOR = Path(__file__).with_name("supervisor.py")
CLOSE_S = 10.0
"""Seconds in which a server ends. The client first closes its input, and kills it after two seconds."""
LAST_LINES, LAST_LETTERS = 3, 500
"""How much of a server's stderr an error shows."""


class ServerClosed(Exception):
    """The server has ended, or closed its output."""


class Loop:
    """A thread with an event loop, in which the clients of all servers of a rank run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()


class Server:
    """A running MCP server. Its methods may be called in any thread, also at the same time."""

    def __init__(
        self, loop: Loop, command: Sequence[str], env: Mapping[str, str], folder: Path, start_s: float
    ) -> None:
        """Start `command` in `folder`, and wait `start_s` seconds for its tools.

        Raises `AgentError` if the server does not start.
        """
        self._loop, self._command = loop, list(command)
        self.tools: tuple[Any, ...] = ()
        """The server's own descriptions of its tools."""
        self._ready: Future[None] = Future()
        self._closing, self._gone = asyncio.Event(), asyncio.Event()
        self._client: Any = None
        self._broken = False
        self._said = b""
        """The last bytes that the server and its descendants have written to stderr."""
        self._running = loop.begin(self._run(dict(env), folder))
        try:
            self._ready.result(start_s)
        except Exception as error:
            self.close()
            late = f"it has not listed its tools within {start_s:g} s"
            what = f"the MCP server {self._command[0]} did not start: "
            what += late if isinstance(error, TimeoutError) else _cause(error)
            remedy = "run its command in a shell; install what it lacks in the role `environment`"
            raise AgentError(what + self.last_words(), remedy=remedy) from error

    @property
    def ended(self) -> bool:
        """True if the connection is closed."""
        return self._broken or self._gone.is_set()

    def call(self, name: str, arguments: Mapping[str, Any], limit: float) -> Any:
        """Return the server's result of a call. Raises `TimeoutError`, `ServerClosed`, or the client's ``MCPError``."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if self.ended:
            raise ServerClosed
        calling = self._loop.begin(self._client.call_tool(name, dict(arguments), read_timeout_seconds=limit))
        try:
            return calling.result(limit + CLOSE_S)
        except MCPError as error:
            if error.error.code == REQUEST_TIMEOUT:
                raise TimeoutError from error
            if error.error.code == CONNECTION_CLOSED:
                self._broken = True
                raise ServerClosed from error
            raise

    def last_words(self) -> str:
        """Return the last lines of the server's stderr, as the end of a sentence; empty if it has written none."""
        lines = [line.strip() for line in self._said.decode(errors="replace").splitlines() if line.strip()]
        return f"; its last messages: {' | '.join(lines[-LAST_LINES:])[-LAST_LETTERS:]}" if lines else ""

    def close(self) -> None:
        """End the server and its descendants."""
        self._loop.begin(self._close()).result(2 * CLOSE_S)

    async def _close(self) -> None:
        self._closing.set()
        if not self._ready.done():
            self._running.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), CLOSE_S)

    async def _run(self, env: dict[str, str], folder: Path) -> None:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        arguments = ["-I", "-S", str(SUPERVISOR), str(os.getpid()), *self._command]
        # A server that prints a byte that is no UTF-8 must not end the connection.
        parameters = StdioServerParameters(
            command=sys.executable, args=arguments, env=env, cwd=folder, encoding_error_handler="replace"
        )
        try:
            with self._hearing() as log:
                async with Client(stdio_client(parameters, errlog=log)) as client:
                    self._client = client
                    self.tools = await _tools(client)
                    self._ready.set_result(None)
                    await self._closing.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error if isinstance(error, Exception) else AgentError(repr(error)))
        finally:
            self._gone.set()

    @contextlib.contextmanager
    def _hearing(self) -> Iterator[TextIO]:
        """Return a file for the server's stderr. The log of the rank gets all of it, and this object keeps its end."""
        loop = asyncio.get_running_loop()
        read, write = os.pipe()
        os.set_blocking(read, False)

        def hear() -> None:
            """Take one piece, so that a server without end cannot hold up the others of this loop."""
            said = b""
            with contextlib.suppress(BlockingIOError):
                said = os.read(read, 2**16)
                if not said:
                    loop.remove_reader(read)
            with contextlib.suppress(OSError):  # the disk of the log may be full
                os.write(2, said)
            self._said = (self._said + said)[-(2**12) :]

        loop.add_reader(read, hear)
        try:
            with open(write, "w") as log:
                yield log
        finally:
            hear()
            loop.remove_reader(read)
            os.close(read)


def _cause(error: BaseException) -> str:
    """Return why a connection has not come about. The client wraps its errors in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if getattr(getattr(error, "error", None), "message", None) == "Connection closed":
        return "it has ended before it listed its tools"
    return f"{type(error).__name__}: {error}"


async def _tools(client: Any) -> tuple[Any, ...]:
    """Return the tools of all pages, in the order of their names.

    Some servers end with an empty cursor, or send one page again and again: a page whose cursor has come before is the
    last one.
    """
    found: dict[str, Any] = {}
    cursor, seen = None, set[str]()
    while True:
        page = await client.list_tools(cursor=cursor)
        found |= {str(tool.name): tool for tool in page.tools}
        cursor = page.next_cursor
        if not cursor or cursor in seen:
            return tuple(found[name] for name in sorted(found))
        seen.add(cursor)


def described(tool: Any, repeatable: Callable[[Any], bool]) -> Tool:
    """Return a tool of a server as rolemesh describes it."""
    schema = {"type": "object", **tool.input_schema}
    return Tool(tool.name, tool.description or tool.title or tool.name, schema, repeatable(tool))


def as_text(result: Any) -> str:
    """Return the result of a call as the model sees it: its texts, or else its structured content as JSON.

    Parts that have no text are named.
    """
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_part, result.content))


def _part(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type == "resource":
        return str(getattr(part.resource, "text", f"[{part.resource.uri}]"))
    return f"[{part.uri}]" if part.type == "resource_link" else f"[{part.type}]"
