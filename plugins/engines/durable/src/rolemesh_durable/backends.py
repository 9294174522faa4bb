"""The API of a backend: where master, agents and ranks live. A kind of plugin of this engine's: ``--backend``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar

from rolemesh.api.cluster import ClusterView
from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind

__all__ = ["KIND", "Backend"]

KIND = Kind(
    "backends",
    "backend",
    "rolemesh_durable.backends:Backend",
    ("driver", "master", "agent"),
    listed=False,
    conformance="rolemesh_testing:BackendConformance",
)


class Backend(Plugin, ABC):
    """Base of backends (entry-point group ``rolemesh.backends``).

    The fields of its `Options` are options of ``rolemesh run`` where it is chosen. One instance starts one job, from a
    driver's process. How the master reaches its agents there is a
    `rolemesh_durable.protocol.launcher.Launcher`, which the master's process makes.
    """

    name: ClassVar[str]
    """As in the entry point: what the journal and ``run.json`` call it."""
    nodes_join: ClassVar[bool] = False
    """Whether nodes may come that were not there at the start."""
    inherits: ClassVar[bool] = True
    """Whether the job's processes inherit this process's environment. If not, they take up the bundle's `environ`."""

    def __init__(self, options: Any, lost: Collection[str] = ()) -> None:
        """`lost`: nodes that an earlier attempt of the job has lost, and that must not be used. Raises `BackendError`
        if the backend cannot be reached."""
        super().__init__(options)
        self.lost = frozenset(lost)

    @classmethod
    def outlives(cls, options: Any) -> bool:
        """Whether what it starts can go on without the process that has started it."""
        return True

    @classmethod
    def expected(cls, options: Any) -> ClusterView | None:
        """The nodes that it will have, where that is known before anything is started."""
        return None

    @property
    def address(self) -> str:
        """Under which others reach the cluster that it is, "" if there is nothing to reach."""
        return ""

    @abstractmethod
    def cluster(self) -> ClusterView:
        """The nodes that are there, with all that they have."""

    def knows(self, job: str) -> bool:
        """Whether a job of this name lives here, as far as the backend can tell."""
        return False

    @abstractmethod
    def start(self, bundle: Any, lock: int) -> None:
        """Start the master with an engine's `bundle`, and return when it answers.

        `lock` is the descriptor of the run folder's lock, to be held by the job's processes; -1 if there is none.
        Raises `BackendError` if it does not come up.
        """

    @abstractmethod
    def alive(self) -> bool:
        """Whether there is a master, or soon will be."""

    @abstractmethod
    def close(self) -> None:
        """Wait for the job's processes to be gone, and leave nothing behind."""
