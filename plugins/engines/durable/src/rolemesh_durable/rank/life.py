"""A rank's life after its setup: it is restored, opens its edges, and runs its steps."""

from __future__ import annotations

from typing import Any

from rolemesh.api.workload import RankContext, Workload
from rolemesh.graph.schedule import Activity
from rolemesh.runs.digest import digest
from rolemesh.runs.meter import Meter
from rolemesh_durable.checkpoint.disk import load
from rolemesh_durable.checkpoint.memory import MemorySnapshot, MemorySnapshots
from rolemesh_durable.checkpoint.send_log import SendLog
from rolemesh_durable.checkpoint.trust import written_by
from rolemesh_durable.protocol.job import RankStart
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.rank.boundary import Boundary, Group, write_snapshot
from rolemesh_durable.rank.call_start import Admission
from rolemesh_durable.rank.control import Control, Stopping
from rolemesh_durable.rank.edges import Ports
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.loop import Loop
from rolemesh_durable.rank.origin import Origin
from rolemesh_durable.rank.shortage import Shortage
from rolemesh_durable.rank.status_page import SNAPSHOT, StatusPage
from rolemesh_durable.rank.takeover import Inheritance, carry_over, take_over

__all__ = ["Life"]


class Life:
    """One generation of a rank, whose workload is set up already."""

    def __init__(
        self,
        start: RankStart,
        endpoint: Endpoint,
        status_page: StatusPage,
        control: Control,
        workload: Workload,
        ctx: RankContext[Any],
        admission: Admission | None = None,
    ) -> None:
        """Restore the rank to the state after step ``start.launch.resume``, and open its edges.

        Raises `SnapshotError` if it cannot be restored, and what the workload's ``restore`` raises.
        """
        job, launch = start.job, start.launch
        self._start, self._endpoint, self._status_page, self._control = start, endpoint, status_page, control
        self._workload, self._steps, self._admission = workload, job.steps, admission
        self._keeps = job.snapshots.enabled
        self._stateful = launch.role in job.stateful
        self._shortage = endpoint.pool.persist = Shortage(endpoint, status_page)
        log = None
        if self._keeps:
            endpoint.keep_slots = True
            log = SendLog(
                start.shm_dir,
                launch.role,
                launch.rank,
                generation=launch.generation,
                resume=launch.resume,
                persist=self._shortage,
            )
        self._shortage.meter = self._meter = Meter(ctx, job.metrics_every, endpoint.report, log)
        self._inherited = Inheritance(endpoint.pool.directory)
        activity = Activity(job.graph)
        self._shortage.ports = self._ports = ports = Ports(
            job.graph,
            activity,
            job.world_sizes,
            endpoint,
            status_page,
            self._meter,
            steps=job.steps,
            retention=job.retention,
            retention_bytes=job.retention_bytes,
            snapshots=job.snapshots,
            stateful=job.stateful,
            resume=launch.resume,
            log=log,
        )
        boundary = self._restore(log) if log is not None else None
        self._boundary = boundary
        self._loop = Loop(
            workload,
            ctx,
            job.graph,
            activity=activity,
            endpoint=endpoint,
            ports=ports,
            status_page=status_page,
            meter=self._meter,
            control=control,
            steps=job.steps,
            boundary=boundary,
            admission=admission,
        )
        ports.open(control.wire.peers if control.wire is not None else ())
        control.on_wire = lambda wire: ports.rewire(wire.peers)
        control.on_advance = boundary.advanced if boundary is not None else self._advanced
        if control.advance is not None:
            control.on_advance(control.advance)
        if not self._stateful and launch.resume >= 0:
            self._loop.repeat(launch.resume)
        if self._inherited.partial is not None:
            self._meter.resume(self._inherited.partial)

    def digest(self) -> str:
        """The sha256 of the state now, "" if there is none. Raises what the workload's ``snapshot`` raises."""
        if self._admission is not None and self._stateful:
            self._admission.take()
        state = self._workload.snapshot()
        sha256 = digest(state) if state is not None else ""
        if self._admission is not None:
            self._admission.leave()
        return sha256

    def run(self) -> None:
        """Run all steps that are left. Raises `Stopping`."""
        self._loop.run(self._start.launch.resume + 1)
        while self._inherited.lines and self._control.advance is None:
            self._endpoint.wait()  # the lines of former generations go out with the first word of the agent
        self._meter.flush()
        if self._control.stopping is not None:
            raise Stopping

    def _advanced(self, advance: Watermarks) -> None:
        self._ports.commit(advance.committed)

    def _restore(self, log: SendLog) -> Boundary:
        start, job, launch = self._start, self._start.job, self._start.launch
        memory = MemorySnapshots(start.shm_dir, launch.role, launch.rank)
        found = MemorySnapshot(None, 0)
        match launch.restore:
            case "none":
                memory.clear()
            case "memory":
                memory.drop_after(launch.resume)
                found = memory.read(launch.resume)
            case "disk":
                memory.clear()
                found = load(launch.origin, launch.role, launch.rank, launch.world_size, self._workload.snapshot)
        from_disk = launch.restore == "disk"
        if found.state is not None and self._stateful:
            self._workload.restore(found.state)
        self._inherited = take_over(log, self._ports, launch.resume, anew=from_disk)
        if launch.origin:
            self._give()
        if from_disk:
            carry_over(launch.origin, job.graph, job.world_sizes, self._ports, trusted=self._trusted)
            write_snapshot(self._shortage, memory, launch.resume, found.state, log=log.position, persist=False)
        self._status_page.fields[SNAPSHOT] = launch.resume
        alone = not launch.collective or launch.world_size == 1
        return Boundary(
            job.snapshots,
            memory,
            self._workload,
            stateful=self._stateful,
            steps=job.steps,
            ports=self._ports,
            log=log,
            meter=self._meter,
            status_page=self._status_page,
            group=None if alone else Group(launch.role, start.mates, self._ports, self._control),
            inherited=self._inherited,
            admission=self._admission,
            shortage=self._shortage,
        )

    @property
    def _trusted(self) -> bool:
        """Whether what the origin has of pickled objects may be read: it is the job's own, or a person said so."""
        job = self._start.job
        return job.trust_pickles or written_by(job.job_id, self._start.launch.origin)

    def _give(self) -> None:
        """Give the in-ports what was on its way when the job's origin was persisted."""
        launch, job = self._start.launch, self._start.job
        origin = Origin(launch.origin, job.graph, launch.rank, launch.world_size, trusted=self._trusted)
        for params in self._ports.inputs.values():
            for _, port in params:
                values: dict[int, Any] = {}
                if port.first <= launch.origin_step:
                    values = {made: value for made, value in origin.values(port.edge).items() if made >= port.first}
                port.give(values, launch.origin_step)
