"""Which tests stay together where a run has several processes (``pytest -n 2``): those that share what is costly."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

__all__ = ["Shares", "share_of"]

RAY = (
    "tests/chaos/test_kills.py",
    "tests/e2e/test_elastic.py",
    "tests/e2e/test_ray.py",
    "tests/e2e/test_ray_failover.py",
    "tests/e2e/test_ray_nodes.py",
    "tests/e2e/test_ray_sharing.py",
    "plugins/backends/ray/tests/test_ray.py",
)
WHEELS = ("tests/test_wheels.py", "tests/test_community.py", "tests/e2e/test_new.py")


def share_of(nodeid: str) -> str:
    """A file; what takes the built distributions, or the tests' Ray; a plugin with all its tests, which have one engine
    or one group."""
    path, _, test = nodeid.partition("::")
    if path == "tests/chaos/test_kills.py" and "ray" not in test:
        return path
    if path in RAY:
        return "ray"
    if path.startswith("plugins/"):
        return "/".join(path.split("/")[:3])
    if path.startswith("tests/gpu/"):
        return nodeid  # most of their time is start-up
    return "wheels" if path in WHEELS else path


class Shares(LoadScopeScheduling):
    """Hands out shares in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
