"""The life of a rank after its setup: it is restored, opens its edges, and runs its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from os import statvfs

import msgspec

from rolemesh.api.workload import RankContext, Workload
from rolemesh_checkpoint.disk import load
from rolemesh_checkpoint.in_flight import InFlight
from rolemesh_checkpoint.memory import MemorySnapshot, MemorySnapshots
from rolemesh_checkpoint.trust import written_by
from rolemesh_durable.protocol.messages import RankDone
from rolemesh_durable.protocol.rank.begun_lines import begun_line
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.owing import SnapshotPace
from rolemesh_durable.protocol.rank.page import IDLE, OP, SNAPSHOT
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.restoring import Former, restore_edges
from rolemesh_durable.protocol.rank.snapshots import GroupSnapshots, SnapshotTaker, omission_of
from rolemesh_durable.protocol.rank.span import Span
from rolemesh_durable.protocol.starts import RankStart
from rolemesh_durable.rank.channel import Channels
from rolemesh_durable.rank.event_loop import Tasks
from rolemesh_durable.rank.former_memory import Inherited, ProcessFormerMemory, stored_line
from rolemesh_durable.rank.last_state import not_kept, write_last
from rolemesh_durable.rank.loop import Loop, listens
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.notes import Notes
from rolemesh_durable.rank.origin_files import OriginFiles
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.process_effects import process_effects
from rolemesh_durable.rank.sent_log import SentLog
from rolemesh_durable.rank.services import Extending, Rank, RankPlace
from rolemesh_durable.rank.shortage import Shortage
from rolemesh_durable.rank.snapshot_store import ProcessSnapshotStore, StateSource, newest_snapshot, write_snapshot
from rolemesh_runtime.digest import digest
from rolemesh_runtime.operator_failure import OperatorFailed

__all__ = ["Life"]

SLACK = 32
"""Divisor for the growth of kept bytes between two snapshots: at most this part of the limit and of shared memory."""


class Life:
    """One generation of a rank, whose workload is set up already."""

    def __init__(
        self, place: RankPlace, control: Control, workload: Workload, ctx: RankContext, extensions: Sequence[Extending]
    ) -> None:
        """Restore the rank to the state after step ``start.launch.resume``, and open its edges.

        Raises `SnapshotError` if it cannot be restored, and the errors of the workload's ``restore``.
        """
        start, endpoint, status_page, barrier = place.start, place.endpoint, place.status_page, place.barrier
        job, launch = start.job, start.launch
        self._start, self._endpoint, self._status_page, self._control = start, endpoint, status_page, control
        self._workload, self._barrier, self._ctx = workload, barrier, ctx
        self._keeps, self._stateful = job.snapshots.enabled, launch.role in job.stateful
        self._waits, self._shortage = place.waits, Shortage(endpoint.idle, place.waits, status_page.fields)
        endpoint.pool.await_memory(self._shortage)
        log = _send_log(start, self._shortage) if self._keeps else None
        self._meter = Meter(ctx, (), endpoint.report, log)
        self._inherited = Inherited(endpoint.pool.directory)
        place.waits.count(self._meter)
        self._effects = effects = process_effects(endpoint, status_page, place.waits, self._meter, log)
        self._ports = ports = Ports(job, effects, resume=launch.resume, barrier=barrier)
        self._shortage.attach(ports)
        self._notes = Notes(ctx, log)
        port_of(ctx).keep(self._notes)
        self._tasks, channels = Tasks(endpoint), Channels(endpoint, job.graph.roles)
        rank = Rank(ctx, workload, status_page, self._meter, ports, log, self._tasks, channels, place.master)
        found = (extension.in_rank(rank) for extension in extensions)
        self._hooks = hooks = RankHooks([part for part in found if part is not None])
        if hooks.spent:
            self._meter.attend(self._spent)
        port_of(ctx).attend_metrics(hooks.measured)
        self._taker = self._restore(log) if log is not None else None
        self._loop = Loop(rank, endpoint, hooks, control, effects, taker=self._taker, origin=self._origin)
        self._loop.begin(launch, place.master)
        self._meter.restart()
        if self._inherited.partial is not None:
            self._meter.resume(self._inherited.partial)

    def conclude(self, last: int) -> RankDone:
        """Take the state after the last step, and write it to disk if the job keeps only that one.

        A job that takes snapshots fails with the errors of the workload's ``snapshot``. Any other job is done, and
        reports why there is no last state.
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
        """Run all remaining steps. Return the last one. Raises `Stopping`."""
        try:
            last = self._loop.run(self._start.launch.resume + 1)
        except OperatorFailed:
            self._meter.flush()  # but not the current line: its steps may be repeated
            for close in self._hooks.close:
                close()
            raise
        if self._taker is not None and self._control.stopping is None:
            self._taker.end(last)
        # The agent's first message releases the lines of former generations.
        self._waits.until(lambda: not self._inherited.lines or self._control.advance is not None, IDLE)
        self._meter.flush()
        if self._control.stopping is not None:
            raise Stopping
        return last

    def wait(self) -> None:
        """Wait for the end of the job. Raises `Stopping`."""
        self._waits.until(self._loop.hear, IDLE)

    def acknowledge(self) -> None:
        """Tell the workload the job's last committed and persisted steps, because the job is stopping."""
        if (stop := self._control.stopping) is not None:
            self._loop.acknowledge(stop.committed, stop.persisted)

    def close(self) -> None:
        """Release all resources of the steps."""
        for close in self._hooks.close:
            close()
        self._tasks.close()

    def _spent(self, phase: int, edge: int, began: int, ended: int) -> None:
        span = Span(phase, self._status_page.fields[OP], edge, self._ctx.step, began, ended)
        for spent in self._hooks.spent:
            spent(span)

    def _restore(self, log: SentLog) -> SnapshotTaker:
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
        (ours, records), origin = log.take_found(), lru_cache(partial(self._origin, launch.origin))
        left = ProcessFormerMemory(launch.ref, self._endpoint.pool, records, self._inherited)

        def keep() -> None:
            there = origin()
            before, now = there.world_sizes.get(launch.role, 0), job.world_sizes[launch.role]
            begun = begun_line(lambda rank: stored_line(there.records(launch.role, rank)), launch.rank, before, now)
            if begun is not None:
                self._inherited.continues(begun)
                log.line(launch.resume, msgspec.msgpack.encode(begun), partial=True)
            state = found.state
            write_snapshot(self._shortage, memory, launch.resume, lambda: state, log=log.position, persist=False)

        def carried() -> tuple[Sequence[InFlight], Mapping[str, int]]:
            return origin().records(launch.role, launch.rank), origin().world_sizes

        self._ports.inherit(self._inherited)
        former = Former(log, records, ours, left, origin, carried, keep)
        restore_edges(self._ports, launch, job.world_sizes, former)
        self._status_page.fields[SNAPSHOT] = launch.resume
        return self._snapshots(memory, log)

    def _snapshots(self, memory: MemorySnapshots, log: SentLog) -> SnapshotTaker:
        job, launch, ports, hooks = self._start.job, self._start.launch, self._ports, self._hooks
        barrier = self._barrier if launch.collective and launch.world_size > 1 else None
        omission = omission_of(
            ports.job, launch.role, barrier, lockstep=type(self._workload).lockstep,
            may_postpone=hooks.postpone_snapshots and not listens(self._workload),
        )  # fmt: skip
        state, group = None, None
        if barrier is not None:
            group = GroupSnapshots(launch.role, self._control, [partial(newest_snapshot, p) for p in self._start.mates])
        if self._stateful:
            before = hooks.before_snapshot if omission.barrier is None else ()
            early = bool(before) or group is not None
            state = StateSource(self._workload, before, early=early)
        where = statvfs(self._endpoint.pool.directory)
        return SnapshotTaker(
            ports, self._effects,
            ProcessSnapshotStore(memory, log, self._meter, ports, self._shortage, self._inherited, state),
            self._control, pace=SnapshotPace(job.snapshots), omission=omission, group=group,
            slack=min(job.retention_bytes, where.f_blocks * where.f_frsize) // SLACK,
        )  # fmt: skip

    def _origin(self, folder: str) -> OriginFiles:
        """Return the persisted snapshot in `folder`, as this rank sees it.

        The rank may unpickle its objects if it is the job's own, or a person allowed it.
        """
        launch, job = self._start.launch, self._start.job
        trusted = job.trust_pickles or written_by(job.job_id, folder)
        return OriginFiles(folder, job.graph, launch.rank, launch.world_size, trusted=trusted)


def _send_log(start: RankStart, persist: Shortage) -> SentLog:
    """Open the rank's send log; `persist` waits for memory."""
    launch = start.launch
    return SentLog(
        start.shm_dir, launch.role, launch.rank, generation=launch.generation, timeline=start.timeline,
        copied=bool(launch.replica), resume=launch.resume, persist=persist,
    )  # fmt: skip
