"""A job that has passed every check that needs no cluster, and how it is made to fit one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import RolemeshError
from rolemesh.graph.flow import Flow
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.trace import trace_job
from rolemesh.job.elastic import elastic_roles, has_room, largest
from rolemesh.job.planning import plan_selected, request_of
from rolemesh.placement import PlacementPlan, PlacementRequest
from rolemesh.plugins.lock import lock_file, read_lock
from rolemesh.plugins.select import Selection, select
from rolemesh.spec import JobFile, load
from rolemesh.spec.job_file import Written
from rolemesh.spec.role_environments import environments

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """A checked job: its file, the plugins that it uses, its graph.

    `source`, `overrides`, `locked` and `flow` are what it was prepared from.
    """

    job: JobFile
    selection: Selection
    graph: LogicalGraph
    source: Path | Written
    overrides: tuple[str, ...] = ()
    locked: bool = False
    flow: Flow | None = None

    def again(self, overrides: Sequence[str]) -> Prepared:
        """The same job with more overrides, prepared from scratch."""
        return prepare(self.source, (*self.overrides, *overrides), locked=self.locked, flow=self.flow)

    @property
    def elastic(self) -> dict[str, tuple[int, int]]:
        """The least and the most ranks of elastic roles."""
        return elastic_roles(self.job)

    @property
    def request(self) -> PlacementRequest:
        """What its roles ask for."""
        return request_of(self.job, self.selection, self.graph)

    def plan(self, cluster: ClusterView) -> PlacementPlan:
        """Where its ranks go. Those without a place are in `unplaced`."""
        return plan_selected(self.job, self.selection, self.graph, cluster)

    def sized(self, sizes: Mapping[str, int]) -> Prepared:
        """With these numbers of ranks."""
        return self.again([f"roles.{role}.world_size={size}" for role, size in sizes.items()]) if sizes else self

    def fits(self, sizes: Mapping[str, int], cluster: ClusterView) -> bool:
        """Whether there is room for these numbers of ranks of its elastic roles."""
        return has_room(self.job, self.selection, self.graph, cluster, sizes)

    def largest(self, cluster: ClusterView) -> dict[str, int]:
        """How many ranks its elastic roles can have there."""
        return largest(self.elastic, lambda sizes: self.fits(sizes, cluster))

    def fitted(self, cluster: ClusterView) -> Prepared:
        """With as many ranks of its elastic roles as there is room for."""
        return self.sized(self.largest(cluster))


def prepare(
    source: Path | Written, overrides: Sequence[str] = (), *, locked: bool = False, flow: Flow | None = None
) -> Prepared:
    """Load, select plugins, trace. With `locked`, plugins must be those of the lock beside the file.

    `flow`: the flow itself, where it need not be imported.

    Raises `RolemeshError` with every problem that was found.
    """
    lock = None
    if locked and isinstance(source, Path):
        lock = read_lock(lock_file(source))
        lock.check_kernel(str(lock_file(source)))
    job = load(source, overrides)
    selection = select(job, lock=lock)
    environments(job)
    try:
        graph = trace_job(job, selection, flow)
    except RolemeshError as error:
        raise job.placed(error) from error
    return Prepared(job, selection, graph, source, tuple(overrides), locked, flow)
