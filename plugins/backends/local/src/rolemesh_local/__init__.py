"""The backend without Ray: master and agents are processes of this machine that meet at sockets in private folders.

The nodes are this machine, or emulated ones (``--nodes``). Each node has its own agent, and edges between nodes use the
remote transport.
"""

from rolemesh_local.backend import LocalBackend, LocalOptions
from rolemesh_local.launcher import LocalLauncher

__all__ = ["LocalBackend", "LocalLauncher", "LocalOptions"]
