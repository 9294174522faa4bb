"""The backend on Ray: a detached, named master actor per job, and a detached agent actor per node in reserved bundles.

Ray starts and places actors, reserves bundles atomically, restarts the master, and says when an actor or node is gone;
what flows between master and agents are actor calls that only enqueue. `ray` is imported when the backend is used.
"""

from rolemesh.backends.ray.backend import RayBackend
from rolemesh.backends.ray.launcher import RayLauncher
from rolemesh.backends.ray.names import NAMESPACE

__all__ = ["NAMESPACE", "RayBackend", "RayLauncher"]
