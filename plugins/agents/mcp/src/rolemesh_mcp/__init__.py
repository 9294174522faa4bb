"""The tools of an MCP server as an environment. The import of mcp comes with the first episode."""

from rolemesh_mcp.environment import McpEnvironment, McpOptions

__all__ = ["McpEnvironment", "McpOptions"]
