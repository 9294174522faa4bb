"""The backend plugin for Ray. `ray` itself is imported only when a job starts; checking a job does not need it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, Field

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import BackendError
from rolemesh.kinds.installed import how_to_install
from rolemesh.placement.nodes import this_machine
from rolemesh_durable.backends import Backend

if TYPE_CHECKING:
    from rolemesh.placement import PlacementPlan
    from rolemesh_ray.turn import RayTurn

__all__ = ["RayBackend", "RayOptions"]


class RayOptions(BaseModel, extra="forbid"):
    """Options of the backend."""

    address: str | None = Field(
        default=None,
        description="Join the Ray cluster at this address ('auto' finds one) instead of starting one.",
        json_schema_extra={"metavar": "ADDR"},
    )


class RayBackend(Backend):
    """Joins the Ray cluster at `address`, or starts one on this machine that ends with this process."""

    Options: ClassVar[type[BaseModel]] = RayOptions
    name: ClassVar[str] = "ray"
    nodes_join: ClassVar[bool] = True
    inherits: ClassVar[bool] = False

    def __init__(self, options: RayOptions, lost: Collection[str] = ()) -> None:
        super().__init__(options, lost)
        try:
            from rolemesh_ray.connection import RayConnection
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            remedy = f"{how_to_install('ray', repr('rolemesh[ray]'))}, or run with --backend local"
            raise BackendError("Ray is not installed", remedy=remedy) from error
        self._ray = RayConnection(options.address)

    @classmethod
    def outlives(cls, options: RayOptions) -> bool:
        """Return False for a Ray cluster that was started here, because it ends with this process."""
        return options.address is not None

    @classmethod
    def expected(cls, options: RayOptions) -> ClusterView | None:
        """Return this machine if a Ray cluster is started here."""
        return this_machine() if options.address is None else None

    @property
    def address(self) -> str:
        """Return the address at which others can join this Ray cluster."""
        return self._ray.gcs_address

    def cluster(self) -> ClusterView:
        """Return the living nodes with their total resources, this one first, then by id."""
        return self._ray.cluster().without(self.lost)

    def free(self) -> ClusterView:
        """Return the living nodes with the free resources for which no job waits."""
        return self._ray.free(self.lost)

    def queue(self, job: str, priority: int, plan: Callable[[ClusterView], PlacementPlan]) -> RayTurn:
        """Join the queue of jobs that wait for room."""
        return self._ray.queue(job, priority, plan, self.lost)

    def knows(self, job: str) -> bool:
        """Return whether a job of this name runs on this Ray cluster, even if it is between two masters."""
        return self._ray.knows(job)

    def start(self, bundle: Any, lock: int) -> None:
        """Start the master actor on this node, which has the run's folder, and return when it answers."""
        self._ray.start(bundle)

    def alive(self) -> bool:
        """Return whether the master's actor exists, or Ray is restarting it."""
        return self._ray.alive()

    def close(self) -> None:
        """Remove everything of the job from Ray. Then leave the cluster, or end it if it was started here."""
        self._ray.close()
