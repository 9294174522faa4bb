"""An MCP server over stdin and stdout, with tools that add, fail and end the server."""

import os

from mcp.server.fastmcp import FastMCP

server = FastMCP("adding")


@server.tool()
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


@server.tool()
def end() -> str:
    """End the server."""
    os._exit(3)


server.run()
