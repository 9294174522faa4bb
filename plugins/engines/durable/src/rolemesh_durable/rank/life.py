"""A rank's life after its setup: it is restored, opens its edges, and runs its steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from os import statvfs
from typing import Any

from rolemesh.api.workload import RankContext, Workload
from rolemesh.graph.schedule import Activity
from rolemesh.runs.digest import digest
from rolemesh.runs.operator_failure import OperatorFailed
from rolemesh_durable.checkpoint.disk import load
from rolemesh_durable.checkpoint.memory import MemorySnapshot, MemorySnapshots
from rolemesh_durable.checkpoint.send_log import CHUNK, END, LogRecord
from rolemesh_durable.checkpoint.trust import written_by
from rolemesh_durable.protocol.job import RankStart
from rolemesh_durable.protocol.messages import Connect, RankDone, Watermarks
from rolemesh_durable.protocol.owing import by_appointment, may_owe
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.page import SNAPSHOT
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_durable.rank.boundary import SLACK, Boundary, Group, write_snapshot
from rolemesh_durable.rank.control import Control
from rolemesh_durable.rank.crossing import Crossing
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.event_loop import Tasks
from rolemesh_durable.rank.last_state import not_kept, write_last
from rolemesh_durable.rank.loop import Loop
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.notes import Notes
from rolemesh_durable.rank.origin import Origin
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.process_effects import process_effects
from rolemesh_durable.rank.sent_log import SentLog
from rolemesh_durable.rank.services import Extending, Rank
from rolemesh_durable.rank.shortage import Shortage
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_durable.rank.takeover import Inheritance, carry_over, take_over
from rolemesh_durable.rank.waits import ProcessWaits

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
        extensions: Sequence[Extending],
        barrier: GroupBarrier | None = None,
    ) -> None:
        """Restore the rank to the state after step ``start.launch.resume``, and open its edges.

        Raises `SnapshotError` if it cannot be restored, and what the workload's ``restore`` raises.
        """
        job, launch = start.job, start.launch
        self._start, self._endpoint, self._status_page, self._control = start, endpoint, status_page, control
        self._workload, self._barrier = workload, barrier
        self._keeps = job.snapshots.enabled
        self._stateful = launch.role in job.stateful
        self._shortage = endpoint.pool.persist = Shortage(endpoint, status_page)
        log = None
        if self._keeps:
            endpoint.keep_slots = True
            log = SentLog(
                start.shm_dir,
                launch.role,
                launch.rank,
                generation=launch.generation,
                timeline=start.timeline,
                copied=bool(launch.replica),
                resume=launch.resume,
                persist=self._shortage,
            )
        self._shortage.meter = self._meter = Meter(ctx, job.metrics_every, endpoint.report, log)
        self._inherited = Inheritance(endpoint.pool.directory)
        activity = Activity(job.graph)
        shape = JobShape(
            job.graph,
            activity,
            job.world_sizes,
            job.steps,
            job.retention,
            job.retention_bytes,
            job.snapshots,
            job.unrepeated,
            job.varying,
        )
        self._waits = ProcessWaits(endpoint, status_page, self._meter)
        effects = process_effects(endpoint, status_page, self._meter, log)
        self._shortage.ports = self._ports = ports = Ports(shape, effects, resume=launch.resume, barrier=barrier)
        self._notes = Notes(ctx, log)
        port_of(ctx).keep(self._notes)
        self._tasks = Tasks(endpoint)
        rank = Rank(ctx, workload, endpoint, status_page, self._meter, ports, log, self._tasks)
        found = (extension.in_rank(rank) for extension in extensions)
        self._hooks = hooks = RankHooks([part for part in found if part is not None])
        boundary = self._restore(log) if log is not None else None
        self._boundary = boundary
        crossing = Crossing(launch.layout, ports, status_page, hooks, self._meter, control, boundary, self._give)
        self._loop = Loop(rank, hooks, control, boundary=boundary, crossing=crossing)
        ports.open(control.wire.peers if control.wire is not None else ())
        for opened in hooks.opened:
            opened(launch.resume)
        control.on_wire = self._wired
        control.on_advance = self._advanced
        if control.advance is not None:
            control.on_advance(control.advance)
        control.on_adopted.append(self._meter.say_again)
        if launch.role not in job.unrepeated and launch.resume >= 0:
            self._loop.repeat(launch.resume)
        if self._inherited.partial is not None:
            self._meter.resume(self._inherited.partial)

    def conclude(self, last: int) -> RankDone:
        """Take the state after the last step, and write it to disk if only that one is kept.

        A job that takes snapshots fails with what the workload's ``snapshot`` raises. Any other job is done, and says
        why there is no last state.
        """
        job, launch, sha256, part, why = self._start.job, self._start.launch, "", None, ""
        if self._stateful:
            for before_snapshot in self._hooks.before_snapshot:
                before_snapshot()
        try:
            state = self._workload.snapshot()
            sha256 = digest(state) if state is not None else ""
            part = write_last(self._start, state, last) if job.snapshots.last else None
        except Stopping:
            raise
        except Exception as error:
            if self._keeps:
                raise
            why = not_kept(self._start, error)
        for ended in self._hooks.ended:
            ended()
        who = launch.role, launch.rank, launch.generation
        return RankDone(*who, last, sha256, self._workload.verdict(), part, why)

    def run(self) -> int:
        """Run all steps that are left; the last one. Raises `Stopping`."""
        try:
            last = self._loop.run(self._start.launch.resume + 1)
        except OperatorFailed:
            self._meter.flush()  # but not the line that has begun: its steps may be made again
            raise
        if self._boundary is not None and self._control.stopping is None:
            self._boundary.end(last)
        while self._inherited.lines and self._control.advance is None:
            self._endpoint.wait()  # the lines of former generations go out with the first word of the agent
        self._meter.flush()
        if self._control.stopping is not None:
            raise Stopping
        return last

    def wait(self) -> None:
        """Wait for the end of the job. Raises `Stopping`."""
        while True:
            self._endpoint.wait()
            self._loop.heard()

    def acknowledge(self) -> None:
        """The job is stopping: tell the workload how far it has come."""
        if (stop := self._control.stopping) is not None:
            self._loop.acknowledge(stop.committed, stop.persisted)

    def close(self) -> None:
        """Release everything that the steps needed."""
        for close in self._hooks.close:
            close()
        self._tasks.close()

    def _wired(self, wire: Connect) -> None:
        self._ports.rewire(wire.peers)
        for rewired in self._hooks.rewired:
            rewired()

    def _advanced(self, advance: Watermarks) -> None:
        self._meter.published(advance.published)
        for told in self._hooks.advanced:
            told(advance)
        if self._boundary is not None:
            self._boundary.advanced(advance)
        else:
            self._ports.commit(advance.committed)

    def _restore(self, log: SentLog) -> Boundary:
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
        if not from_disk:
            for remember in self._hooks.remember:
                remember()
            self._notes.remember(launch.resume)
        self._inherited = take_over(log, self._ports, self._endpoint.pool, launch.resume, self._is_void, anew=from_disk)
        if launch.origin:
            self._give(launch.origin, launch.origin_step, [edge.id for edge in job.graph.edges])
        if from_disk:
            trusted = self._trusts(launch.origin)
            carry_over(launch.origin, job.graph, job.world_sizes, self._ports, self._endpoint.pool, trusted=trusted)
            state = found.state
            write_snapshot(self._shortage, memory, launch.resume, lambda: state, log=log.position, persist=False)
        self._status_page.fields[SNAPSHOT] = launch.resume
        alone = not launch.collective or launch.world_size == 1
        hooks, lockstep = self._hooks, type(self._workload).lockstep
        may = not self._hears and may_owe(job.graph, self._ports.job.activity, launch.role, together=not alone)
        barrier = self._barrier if may and not alone and lockstep and hooks.postpone_snapshots else None
        apart = not (alone or lockstep or self._hears) and hooks.postpone_snapshots
        where = statvfs(self._endpoint.pool.directory)
        return Boundary(
            job.snapshots,
            memory,
            self._workload,
            stateful=self._stateful,
            steps=job.steps,
            control=self._control,
            ports=self._ports,
            log=log,
            meter=self._meter,
            status_page=self._status_page,
            group=None if alone else Group(launch.role, start.mates, self._control),
            inherited=self._inherited,
            before=hooks.before_snapshot if barrier is None else (),
            shortage=self._shortage,
            owes=barrier is not None or (may and alone and hooks.postpone_snapshots),
            barrier=barrier,
            slack=min(job.retention_bytes, where.f_blocks * where.f_frsize) // SLACK,
            waits=self._waits,
            apart=self._barrier if apart and by_appointment(job.graph, launch.role) else None,
        )

    @property
    def _hears(self) -> bool:
        """Whether the workload wants to know what is committed or persisted, also while it waits in an operator."""
        cls = type(self._workload)
        return cls.committed is not Workload.committed or cls.persisted is not Workload.persisted

    def _trusts(self, folder: str) -> bool:
        """Whether what this snapshot has of pickled objects may be read: it is the job's own, or a person said so."""
        job = self._start.job
        return job.trust_pickles or written_by(job.job_id, folder)

    def _is_void(self, record: LogRecord) -> bool:
        """Whether a former generation made it for ranks of an earlier layout."""
        graph, layout = self._start.job.graph, self._start.launch.layout
        if not layout.number or record.kind not in (CHUNK, END):
            return False
        ends = graph.edges[record.edge]
        return any(layout.is_void(graph.ops[end].role, record.step) for end in (ends.src, ends.dst))

    def _give(self, folder: str, step: int, edges: Collection[int]) -> None:
        """Give the in-ports of `edges` what was on its way when the snapshot of `step` in `folder` was persisted.

        Who is past that does not look at it: it may have been removed meanwhile.
        """
        launch, job = self._start.launch, self._start.job
        ports = [port for port in self._ports.ins if port.edge.id in edges]
        early = [port for port in ports if port.first <= step]
        found: dict[int, dict[int, Any]] = {}
        if early:
            origin = Origin(folder, job.graph, launch.rank, launch.world_size, trusted=self._trusts(folder))
            found = {port.edge.id: port.given_by(origin, step) for port in early}
        for port in ports:
            values = found.get(port.edge.id, {})
            port.give({made: value for made, value in values.items() if made >= port.first}, step)
