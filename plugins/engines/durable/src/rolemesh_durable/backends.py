"""The API of a backend, which hosts master, agents and ranks. It is a kind of plugin of this engine: ``--backend``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Protocol, runtime_checkable

from rolemesh.api.cluster import ClusterView
from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind
from rolemesh.placement import PlacementPlan

__all__ = ["KIND", "Backend", "Shared", "Turn"]

KIND = Kind(
    "backends",
    "backend",
    "rolemesh_durable.backends:Backend",
    ("driver", "master", "agent"),
    listed=False,
    conformance="rolemesh_testing:BackendConformance",
)


class Backend(Plugin, ABC):
    """Base class of backends (entry-point group ``rolemesh.backends``).

    The fields of its `Options` become options of ``rolemesh run`` when it is chosen. One instance starts one job, from
    a driver's process. The master's process creates a `rolemesh_durable.protocol.launcher.Launcher`, by which the
    master reaches its agents.
    """

    name: ClassVar[str]
    """The name of the entry point, which the journal and ``run.json`` use."""
    nodes_join: ClassVar[bool] = False
    """True if nodes may join after the start."""
    inherits: ClassVar[bool] = True
    """True if the job's processes inherit this process's environment. If not, they take the bundle's `environ`."""

    def __init__(self, options: Any, lost: Collection[str] = ()) -> None:
        """`lost`: nodes that an earlier attempt of the job lost, and that must not be used. Raises `BackendError` if
        the backend cannot be reached."""
        super().__init__(options)
        self.lost = frozenset(lost)

    @classmethod
    def outlives(cls, options: Any) -> bool:
        """Return whether its jobs can continue without the process that started them."""
        return True

    @classmethod
    def expected(cls, options: Any) -> ClusterView | None:
        """Return the nodes that it will have, if that is known before anything is started."""
        return None

    @property
    def address(self) -> str:
        """Return the address of its cluster for other processes, "" if there is none."""
        return ""

    @abstractmethod
    def cluster(self) -> ClusterView:
        """Return the present nodes with all their resources."""

    def knows(self, job: str) -> bool:
        """Return whether a job of this name runs here, as far as the backend knows."""
        return False

    @abstractmethod
    def start(self, bundle: Any, lock: int) -> None:
        """Start the master with an engine's `bundle`, and return when it answers.

        `lock` is the descriptor of the run folder's lock, which the job's processes must hold; -1 if there is none.
        Raises `BackendError` if the master does not come up.
        """

    @abstractmethod
    def alive(self) -> bool:
        """Return whether there is a master, or soon will be."""

    @abstractmethod
    def close(self) -> None:
        """Wait for the job's processes to be gone, and clean up."""


class Turn(Protocol):
    """A job's place in the queue, until the backend has its resources or is closed."""

    def look(self) -> tuple[PlacementPlan, ClusterView] | str:
        """Return a plan on the resources that the job may take now, with their nodes, or why it waits.

        The job then starts with this plan, and the backend keeps the resources for it.
        """
        ...


@runtime_checkable
class Shared(Protocol):
    """A backend whose nodes others use."""

    def free(self) -> ClusterView:
        """Return the nodes with the free resources for which no job waits."""
        ...

    def queue(self, job: str, priority: int, plan: Callable[[ClusterView], PlacementPlan]) -> Turn:
        """Join the queue of jobs that wait for room. `plan` places the job's ranks on nodes."""
        ...
