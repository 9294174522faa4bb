"""A job that has passed all checks that need no cluster, with methods that plan it and fit it to a
cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.errors import JobFileError, PlacementError, RolemeshError, nearest, raise_all
from rolemesh.graph.flow import Flow
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.trace import trace_job
from rolemesh.job.planning import largest, plan_job, transfers_of
from rolemesh.job_file import JobFile, WorldSize, load
from rolemesh.job_file.loading import Written
from rolemesh.placement import PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.plugins.admission import Admission
from rolemesh.plugins.manager import JobPlugins
from rolemesh.plugins.option_types import types_of_plugins
from rolemesh.plugins.select import Selected, Selection, checked, select

MOST_NODES = 64
NO_SIZES: Mapping[str, int] = {}


@dataclass(frozen=True)
class CheckedJob:
    """A job as `Workload.check_flow` and `Workload.warnings` see it.

    - `graph`: the calls of the flow, ``graph.ops``, and the edges between them, ``graph.edges``.
    - `roles`: the class `cls` and the checked `options` of each role's workload, by role.
    - `declared`: those of the plugins that the job file lists under ``plugins``, by kind and name,
      with the keys of `RankContext.plugins`.
    - `base`: the job file's folder; relative paths in options refer to it.
    """

    graph: LogicalGraph
    roles: Mapping[str, Selected]
    declared: Mapping[tuple[str, str], Selected]
    base: Path


@dataclass(frozen=True)
class Prepared:
    """A checked job: its file, its plugins and its graph.

    `source`, `overrides`, `admit`, `flow` and `engine` are the arguments from which it was
    prepared.
    """

    job: JobFile
    selection: Selection
    graph: LogicalGraph
    source: Path | Written
    overrides: tuple[str, ...] = ()
    admit: Admission | None = None
    flow: Flow | None = None
    engine: str | None = None

    def again(self, overrides: Sequence[str]) -> Prepared:
        """Return the same job with more overrides, prepared from scratch."""
        overrides = (*self.overrides, *overrides)
        return prepare(self.source, overrides, admit=self.admit, flow=self.flow, engine=self.engine)

    @property
    def view(self) -> CheckedJob:
        """Return what its workloads see of it."""
        chosen = self.selection
        return CheckedJob(self.graph, chosen.roles, chosen.declared, self.job.base)

    @property
    def elastic(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and maximum number of ranks of elastic roles."""
        return {name: (size.least, int(size)) for name, size in self._elastic}

    @property
    def _elastic(self) -> list[tuple[str, WorldSize]]:
        sizes = ((name, role.world_size) for name, role in self.job.spec.roles.items())
        return [(name, size) for name, size in sizes if isinstance(size, WorldSize)]

    @property
    def request(self) -> PlacementRequest:
        """Return the requests of its roles, and the data that they send to each other.

        Raises `JobFileError` if ``edges.sizes`` names a call that the flow does not have.
        """
        return self._request(NO_SIZES)

    def _request(self, world_sizes: Mapping[str, int]) -> PlacementRequest:
        spec = self.job.spec
        roles = list[RoleRequest]()
        for name, role in spec.roles.items():
            size = world_sizes.get(name, role.world_size)
            group = self.selection.roles[name].cls.group
            asked = role.resources
            custom = asked.custom | ({"memory_gb": asked.memory_gb} if asked.memory_gb else {})
            roles.append(RoleRequest(name, size, asked.cpu, asked.gpu, custom, group))
        labels = {op.label: op.id for op in self.graph.ops}
        for label in (each for each in spec.edges.sizes if each not in labels):
            where = self.job.where(("edges", "sizes", label))
            remedy = f"{nearest(label, labels)}; calls: {', '.join(labels)}"
            raise JobFileError(f"the flow has no call {label!r}", where=where, remedy=remedy)
        known = {labels[label]: float(size) for label, size in spec.edges.sizes.items()}
        sizes = {edge.id: known[edge.src] for edge in self.graph.edges if edge.src in known}
        found = transfers_of(self.graph, {role.role: role.world_size for role in roles}, sizes)
        return PlacementRequest(tuple(roles), found)

    def warnings(self) -> list[str]:
        """Return the warnings of workloads about the job: place and cause, with the remedy on a
        second line.

        Before these come warnings about engine options that the chosen engine does not read.
        """
        view, roles = self.view, self.selection.roles.items()
        found = [
            (n, each) for n, used in roles for each in used.cls.warnings(used.options, n, view)
        ]
        said = [str(self.job.placed(each, ("roles", n, "options"))) for n, each in found]
        return [*self._unread(), *said]

    def _unread(self) -> Iterator[str]:
        """Yield the engine options of the job file that the chosen engine does not get."""
        chosen = self.selection.engine
        if chosen.where == "--engine":
            for key in self.job.spec.engine.options:
                where = self.job.where(("engine", "options", key))
                yield f"{where}: it has no effect with the engine {chosen.record.name!r}"

    def plan(
        self, cluster: ClusterView, world_sizes: Mapping[str, int] = NO_SIZES
    ) -> PlacementPlan:
        """Return the plan by the strategies of the job file. Ranks without a place are in
        `unplaced`.

        `world_sizes` replaces the numbers of ranks of some roles.
        """
        plugins = instances(self.selection.placement)
        strategies = [
            (plugins.record(name).name, partial(_place, plugins, name)) for name in plugins.names
        ]
        try:
            return plan_job(self._request(world_sizes), cluster, strategies)
        except PlacementError as error:
            path = (error.where or "placement").split(".")
            error.where = self.job.where([int(part) if part.isdigit() else part for part in path])
            raise

    def plan_with_plenty(self) -> PlacementPlan | None:
        """Return the plan on a cluster with unlimited resources; None if there is none.

        Raises `PlacementError` for errors in the options of strategies, which do not depend on the
        cluster.
        """
        roles = self.request.roles
        cpu = sum(role.world_size * role.cpu for role in roles) + 1
        gpu = sum(role.world_size * math.ceil(role.gpu) for role in roles)
        custom = {name: 1e9 for role in roles for name in role.custom}
        ranks = min(sum(role.world_size for role in roles), MOST_NODES)
        nodes = (NodeView(f"node-{n}", cpu=cpu, gpu=gpu, custom=custom) for n in range(ranks))
        try:
            return self.plan(ClusterView(tuple(nodes)))
        except PlacementError as error:
            if ".options" in (error.where or ""):
                raise
            return None

    def sized(self, sizes: Mapping[str, int]) -> Prepared:
        """Return the job with these numbers of ranks."""
        overrides = [f"roles.{role}.world_size={size}" for role, size in sizes.items()]
        return self.again(overrides) if overrides else self

    def fits(self, sizes: Mapping[str, int], cluster: ClusterView) -> bool:
        """Return whether the cluster has room for these numbers of ranks of its elastic roles."""
        try:
            return not self.plan(cluster, sizes).unplaced
        except PlacementError:
            return False

    def largest(self, cluster: ClusterView) -> dict[str, int]:
        """Return the number of ranks that its elastic roles can have there, limited by the number
        at their start."""
        ranges = {name: (size.least, size.start) for name, size in self._elastic}
        return largest(ranges, lambda sizes: self.fits(sizes, cluster))

    def fitted(self, cluster: ClusterView) -> Prepared:
        """Return the job with the number of ranks at the start of its elastic roles, or fewer if
        the cluster has no room."""
        return self.sized(self.largest(cluster))


def prepare(
    source: Path | Written,
    overrides: Sequence[str] = (),
    *,
    admit: Admission | None = None,
    flow: Flow | None = None,
    engine: str | None = None,
) -> Prepared:
    """Load the job file, select plugins and trace the flow. With `admit`, the job may only use
    plugins that it admits.

    `flow` is the flow function if the caller has it; then it is not imported. `engine` replaces the
    engine of the job file.

    Raises `RolemeshError` with all problems.
    """
    job = load(source, overrides, types=partial(types_of_plugins, admit=admit))
    selection = select(job, admit=admit, engine=engine)
    try:
        graph = trace_job(job, selection.roles, flow)
    except RolemeshError as error:
        raise job.placed(error) from error
    found = Prepared(job, selection, graph, source, tuple(overrides), admit, flow, engine)
    errors = list[RolemeshError]()
    for name, each in selection.roles.items():
        errors += checked(job, name, each, each.cls.check_flow, name, found.view)
    raise_all(errors)
    return found


def instances(chosen: Iterable[Selected]) -> JobPlugins:
    """Return an instance of each, named ``pack#0``. Raises `PluginError` if one cannot be
    created."""
    plugins = JobPlugins()
    for index, each in enumerate(chosen):
        name = f"{each.record.name}#{index}"
        plugins.create(name, each.record, each.cls, each.options, each.where)
    return plugins


def _place(
    plugins: JobPlugins,
    name: str,
    request: PlacementRequest,
    cluster: ClusterView,
    plan: PlacementPlan,
) -> PlacementPlan | None:
    answer: PlacementPlan | None = plugins.call(
        name, "place", request=request, cluster=cluster, plan=plan
    )
    return answer
