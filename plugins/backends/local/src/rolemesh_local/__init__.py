"""The backend without Ray: master and agents are processes of this machine, found through sockets in private folders.

Nodes are this machine's, or emulated ones (``--nodes``): each gets an agent of its own, and edges between them use the
remote transport.
"""

from rolemesh_local.backend import LocalBackend, LocalOptions
from rolemesh_local.launcher import LocalLauncher

__all__ = ["LocalBackend", "LocalLauncher", "LocalOptions"]
