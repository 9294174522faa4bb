"""One MCP server: its process, the connection over stdin and stdout, and calls from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from rolemesh_agents import AgentError, Tool

__all__ = ["Loop", "Server", "ServerClosed", "as_text", "described"]

T = TypeVar("T")
SUPERVISOR = Path(__file__).with_name("supervisor.py")
CLOSE_S = 10.0
"""Seconds in which a server ends. The client first closes its input, and kills it after two seconds."""


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
        self._running = loop.begin(self._run(dict(env), folder))
        try:
            self._ready.result(start_s)
        except Exception as error:
            self.close()
            late = f"it has not listed its tools within {start_s:g} s"
            why = late if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            what = f"the MCP server {self._command[0]} did not start: {why}"
            raise AgentError(
                what, remedy="run its command in a shell; its messages are in the log of the rank"
            ) from error

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
            with open(os.dup(2), "w") as log:
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


async def _tools(client: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if (cursor := page.next_cursor) is None:
            return tuple(sorted(found, key=lambda tool: str(tool.name)))


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
