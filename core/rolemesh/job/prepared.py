"""A job that has passed every check that needs no cluster, and how it is planned and made to fit
one."""

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
from rolemesh.job.planning import flows_of, largest, plan_job
from rolemesh.job_file import JobFile, WorldSize, load
from rolemesh.job_file.loading import Written
from rolemesh.placement import PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.plugins.manager import JobPlugins
from rolemesh.plugins.select import (
    Admission,
    Selected,
    Selection,
    checked,
    select,
    types_of_plugins,
)

MOST_NODES = 64
NO_SIZES: Mapping[str, int] = {}


@dataclass(frozen=True)
class Prepared:
    """A checked job: its file, the plugins that it uses, its graph.

    `source`, `overrides`, `admit`, `flow` and `engine` are what it was prepared from.
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
        """The same job with more overrides, prepared from scratch."""
        overrides = (*self.overrides, *overrides)
        return prepare(self.source, overrides, admit=self.admit, flow=self.flow, engine=self.engine)

    @property
    def elastic(self) -> dict[str, tuple[int, int]]:
        """The least and the most ranks of elastic roles."""
        return {name: (size.least, int(size)) for name, size in self._elastic}

    @property
    def _elastic(self) -> list[tuple[str, WorldSize]]:
        sizes = ((name, role.world_size) for name, role in self.job.spec.roles.items())
        return [(name, size) for name, size in sizes if isinstance(size, WorldSize)]

    @property
    def request(self) -> PlacementRequest:
        """What its roles ask for, and what flows between them.

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
        found = flows_of(self.graph, {role.role: role.world_size for role in roles}, sizes)
        return PlacementRequest(tuple(roles), found)

    def warnings(self) -> list[str]:
        """What workloads say about the job: place and cause, and in a second line the remedy.

        Before that, the options of an engine that is not the one that was chosen.
        """
        roles = self.selection.roles.items()
        found = [
            (n, each) for n, used in roles for each in used.cls.warnings(used.options, n, self)
        ]
        said = [str(self.job.placed(each, ("roles", n, "options"))) for n, each in found]
        return [*self._unread(), *said]

    def _unread(self) -> Iterator[str]:
        """Engine options of the job file that the chosen engine was not given."""
        chosen = self.selection.engine
        if chosen.where == "--engine":
            for key in self.job.spec.engine.options:
                where = self.job.where(("engine", "options", key))
                yield f"{where}: it has no effect with the engine {chosen.record.name!r}"

    def plan(
        self, cluster: ClusterView, world_sizes: Mapping[str, int] = NO_SIZES
    ) -> PlacementPlan:
        """Where its ranks go, by the strategies of the job file. Those without a place are in
        `unplaced`.

        `world_sizes`: other numbers of ranks than the job file's, by role.
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
        """The plan where there is plenty of everything; None if there is none.

        Raises `PlacementError` for what strategies find wrong with their options, whatever the
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
        """With these numbers of ranks."""
        return (
            self.again([f"roles.{role}.world_size={size}" for role, size in sizes.items()])
            if sizes
            else self
        )

    def fits(self, sizes: Mapping[str, int], cluster: ClusterView) -> bool:
        """Whether there is room for these numbers of ranks of its elastic roles."""
        try:
            return not self.plan(cluster, sizes).unplaced
        except PlacementError:
            return False

    def largest(self, cluster: ClusterView) -> dict[str, int]:
        """How many ranks its elastic roles can have there, and no more than they start with."""
        ranges = {name: (size.least, size.start) for name, size in self._elastic}
        return largest(ranges, lambda sizes: self.fits(sizes, cluster))

    def fitted(self, cluster: ClusterView) -> Prepared:
        """With as many ranks of its elastic roles as they start with, or as there is room for."""
        return self.sized(self.largest(cluster))


def prepare(
    source: Path | Written,
    overrides: Sequence[str] = (),
    *,
    admit: Admission | None = None,
    flow: Flow | None = None,
    engine: str | None = None,
) -> Prepared:
    """Load, select plugins, trace. With `admit`, plugins must be those that it lets in.

    `flow`: the flow itself, where it need not be imported. `engine`: the engine that is chosen
    instead of the job file's.

    Raises `RolemeshError` with every problem that was found.
    """
    job = load(source, overrides, types=partial(types_of_plugins, admit=admit))
    selection = select(job, admit=admit, engine=engine)
    try:
        graph = trace_job(job, selection.roles, flow)
    except RolemeshError as error:
        raise job.placed(error) from error
    found = Prepared(job, selection, graph, source, tuple(overrides), admit, flow, engine)
    roles = selection.roles.items()
    raise_all(
        [
            error
            for n, each in roles
            for error in checked(job, n, each, each.cls.check_flow, n, found)
        ]
    )
    return found


def instances(chosen: Iterable[Selected]) -> JobPlugins:
    """An object of each, named ``pack#0``. Raises `PluginError` for one that cannot be made."""
    plugins = JobPlugins()
    for index, each in enumerate(chosen):
        plugins.create(
            f"{each.record.name}#{index}", each.record, each.cls, each.options, each.where
        )
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
