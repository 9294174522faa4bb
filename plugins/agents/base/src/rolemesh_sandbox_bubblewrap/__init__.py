"""The sandbox `bubblewrap`: commands that see the system's programs and one folder."""

from rolemesh_sandbox_bubblewrap.sandbox import BubblewrapOptions, BubblewrapSandbox

__all__ = ["BubblewrapOptions", "BubblewrapSandbox"]
