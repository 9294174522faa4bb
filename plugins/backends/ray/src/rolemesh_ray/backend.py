"""The backend plugin on Ray. `ray` itself is imported when a job is started: checking one needs none."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, Field

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import BackendError
from rolemesh.kinds.installed import how_to_install
from rolemesh.placement.nodes import this_machine
from rolemesh_durable.backends import Backend

if TYPE_CHECKING:
    from rolemesh_ray.queue import Line

__all__ = ["RayBackend", "RayOptions"]


class RayOptions(BaseModel, extra="forbid"):
    """Options of the backend."""

    address: str | None = Field(
        default=None,
        description="Join the Ray at this address ('auto' finds one) instead of starting one.",
        json_schema_extra={"metavar": "ADDR"},
    )


class RayBackend(Backend):
    """Joins the Ray at `address`, or starts one on this machine that ends with this process."""

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
        """A Ray that was started here ends with this process."""
        return options.address is not None

    @classmethod
    def expected(cls, options: RayOptions) -> ClusterView | None:
        """This machine, if a Ray is started here."""
        return this_machine() if options.address is None else None

    @property
    def address(self) -> str:
        """The address under which others join this Ray."""
        return self._ray.gcs_address

    def cluster(self) -> ClusterView:
        """The living nodes with what they have in all; this one first, then by id."""
        return self._ray.cluster().without(self.lost)

    def free(self) -> ClusterView:
        """The living nodes with what is free on them."""
        return self._ray.free().without(self.lost)

    def others(self) -> list[str]:
        """The jobs that have something reserved."""
        return self._ray.others()

    def queue(self, job: str, priority: int) -> Line:
        """Get in line with the other jobs that wait for room here."""
        return self._ray.queue(job, priority)

    def knows(self, job: str) -> bool:
        """Whether a job of this name lives on this Ray, even if it is between two masters."""
        return self._ray.knows(job)

    def start(self, bundle: Any, lock: int) -> None:
        """Start the master actor on this node, where the run's folder is, and return when it answers."""
        self._ray.start(bundle)

    def alive(self) -> bool:
        """Whether the master's actor exists, or Ray is starting it again."""
        return self._ray.alive()

    def close(self) -> None:
        """See that nothing of the job is left on Ray, and leave it (or end it, if it was started here)."""
        self._ray.close()
