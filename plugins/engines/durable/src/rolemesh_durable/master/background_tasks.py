"""The slow tasks that the master runs beside its loop: agents, places, snapshots on disk.

Each task runs in a thread of its own and answers with an event for the machine.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import RolemeshError
from rolemesh.placement import PlacementPlan, Strategy
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_durable.master.placing import find_places, resourced, room_for, sized, why_not_cut
from rolemesh_durable.protocol.launcher import AgentPlace, Launcher
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master_config import MasterConfig, agent_start
from rolemesh_durable.protocol.snapshot_plan import known
from rolemesh_processes.ownership import is_stopped_here

__all__ = ["BackgroundTasks"]

log = logging.getLogger("rolemesh_durable.master")
LOOK_AROUND_S = 10.0
NOTICE_LOOK_S = 2.0
"""Seconds between two requests to the backend for the nodes that will leave."""


class BackgroundTasks:
    """Carries out the machine's slow effects; `answer` takes events, from any thread."""

    def __init__(
        self,
        config: MasterConfig,
        launcher: Launcher,
        strategies: tuple[Strategy, ...],
        answer: Callable[[e.Event], None],
    ) -> None:
        self.plan: PlacementPlan = config.plan
        self._request = config.request
        self._sizes = dict(config.job.world_sizes)
        self._config, self._launcher, self._strategies, self._answer = config, launcher, strategies, answer
        self._run_dir = Path(config.job.run_dir)
        self._hosts = dict(config.hosts)
        self._completing, self._reserving = threading.Lock(), threading.Lock()
        self._origins = 0

    def start(self, agents: tuple[e.Incarnation, ...]) -> None:
        """Start agents."""
        names = tuple(agent.place.agent for agent in agents)

        def task() -> None:
            host = self._host
            starts = [agent_start(self._config, each.place, each.incarnation, host(each.place.node)) for each in agents]
            self._launcher.start(starts)

        self.run("start-agents", task, lambda error: e.StartFailed(error, names))

    def look_around(self) -> None:
        """Report periodically the nodes, those that will leave, the room for roles with scalers, and a driver that is
        stopped, as by Ctrl-Z: it cannot ask, but has not gone."""
        ranges = self._config.ranges if self._config.scalers else {}

        def task() -> None:
            seen, looked = e.NodesSeen(()), float("-inf")
            while True:
                if self._config.driver and is_stopped_here(self._config.driver):
                    self._answer(e.OwnerSeen())
                with contextlib.suppress(RolemeshError, OSError):
                    if leaving := self._launcher.leaving():
                        self._answer(e.NodesLeave(dict(leaving)))
                    if time.monotonic() > looked + LOOK_AROUND_S:
                        looked = time.monotonic()
                        cluster, request, plan = self._launcher.cluster(grows=True), self._request, self.plan
                        room = {
                            role: room_for(role, most, request, plan, cluster, self._strategies)
                            for role, (_, most) in ranges.items()
                        }
                        found = e.NodesSeen(tuple(node.id for node in cluster.nodes), room)
                        if found != seen:
                            self._answer(seen := found)
                time.sleep(NOTICE_LOOK_S)

        self.run("look-around", task, lambda _: e.NodesSeen(()))

    def attach(self, agents: tuple[e.Incarnation, ...]) -> None:
        """Find agents again."""
        numbers = {agent.place.agent: agent.incarnation for agent in agents}

        def task() -> None:
            self._launcher.attach([agent.place for agent in agents], numbers)

        self.run("attach", task, lambda error: e.StartFailed(error, tuple(numbers)))

    def find_places(self, wanted: e.Places, state: JobState) -> None:
        """Find places, and the snapshot from which resized roles start; reserve the resources."""
        homes, agents, known = _homes(state, wanted.away)

        def task() -> None:
            cluster = self._launcher.cluster(grows=bool(wanted.sizes))
            self._hosts |= {node.id: node.host for node in cluster.nodes}
            found = find_places(wanted, self._request, self.plan, cluster, self._strategies, homes, agents)
            if wanted.sizes and not found.why:
                found = self._with_snapshot(found)
            if found.why or wanted.dry or self._reserved(found.places):
                gone = known - {node.id for node in cluster.nodes}
                self._answer(msgspec.structs.replace(found, gone=tuple(gone)))

        self.run("find-places", task, lambda error: e.PlacesFound(wanted, error))

    def _with_snapshot(self, found: e.PlacesFound) -> e.PlacesFound:
        """Return the answer with the folder of the snapshot to cut, or with the reason why it cannot be cut."""
        wanted = found.wanted
        step = disk.newest_complete(self._run_dir, self._config.job.job_id) if wanted.dry else wanted.at_step
        if step < 0:
            return found
        folder = Path(wanted.folder) if wanted.folder else disk.step_folder(self._run_dir, step)
        try:
            why = why_not_cut(folder, wanted.sizes, self._config.collective)
        except SnapshotError:
            if wanted.dry and disk.newest_complete(self._run_dir, self._config.job.job_id) != step:
                return self._with_snapshot(found)  # a newer one is complete, so this one may be removed
            raise
        return msgspec.structs.replace(found, folder=str(folder), why=why)

    def relaid(self, state: JobState) -> None:
        """Take over the job's new world sizes, resources and plan."""
        self._sizes = state.sizes
        self._request = resourced(sized(self._config.request, self._sizes), state.resources)
        self.plan = state.plan if state.plan is not None else self.plan

    def _reserved(self, places: Sequence[AgentPlace]) -> bool:
        """Reserve what is missing of these places. Return False while another call reserves.

        Raises `BackendError`.
        """
        if not self._reserving.acquire(blocking=False):
            return False
        try:
            self._launcher.reserve(places)
        finally:
            self._reserving.release()
        return True

    def find_origin(self) -> None:
        """Find the newest intact persisted snapshot.

        A checkpoint whose commit is under way counts only if it is done before.
        """
        self._origins += 1

        def task() -> None:
            with self._completing:
                found, damaged = disk.newest_intact(self._run_dir, job_id=self._config.job.job_id)
            own = e.OriginFound(str(found.path), found.step, tuple(damaged)) if found is not None else None
            start = self._config
            self._answer(own or e.OriginFound(start.origin, start.origin_step, tuple(damaged)))

        self.run("find-origin", task, lambda error: e.OriginFound("", -1, (error,)))

    def find_checkpoints(self, after: int) -> None:
        """Find the newest intact checkpoint of this job after step `after`, if there is one."""

        def task() -> None:
            found, passed_over = disk.newest_intact(self._run_dir, job_id=self._config.job.job_id)
            for text in passed_over:
                log.warning("%s", text)
            if found is not None and found.step > after and found.manifest is not None:
                self._answer(e.CheckpointCommitted(found.step))

        self.run("find-checkpoints", task, lambda error: e.CheckpointCommitted(after))

    def complete(self, effect: e.CommitCheckpoint) -> None:
        """Commit a checkpoint on disk, and remove the oldest ones."""
        origins, sizes = self._origins, dict(self._sizes)

        def task() -> None:
            job = self._config.job
            files = {name: size for part in effect.parts for name, size in part.files.items()}
            attempts = {name: part.attempt for part in effect.parts for name in part.files}
            plugins = {name: record["version"] for name, record in self._config.versions.items()}
            manifest = disk.Manifest(
                job.name,
                job.job_id,
                effect.step,
                known(job.steps),
                sizes,
                files,
                plugins,
                job.base,
                datetime.now(UTC).isoformat(timespec="seconds"),
                disk.flow_lines(job.graph),
            )
            step = effect.step
            with self._completing:
                if self._origins > origins:
                    step = -1  # the job has gone back to disk meanwhile, so the checkpoint is of an old timeline
                else:
                    try:
                        disk.write_manifest(self._run_dir, manifest, attempts)
                        with contextlib.suppress(OSError):  # the next checkpoint removes the rest
                            disk.prune(self._run_dir, job.snapshots.stay, job.job_id, effect.needed)
                    except SnapshotError:
                        newest = disk.newest_complete(self._run_dir, job.job_id)
                        if newest < step:
                            raise
                        step = newest  # a later one was faster, and its commit removed this one's parts
            self._answer(e.CheckpointCommitted(step))

        self.run("persist", task, lambda error: e.CheckpointCommitted(effect.step, error))

    def _host(self, node: str) -> str:
        if node not in self._hosts:
            self._hosts |= {known.id: known.host for known in self._launcher.cluster().nodes}
        return self._hosts.get(node, "127.0.0.1")

    def run(self, name: str, task: Callable[[], None], failed: Callable[[str], e.Event]) -> None:
        """Run `task` in a thread of its own. If it raises, the machine gets the event `failed(why)`."""

        def guarded() -> None:
            try:
                task()
            except Exception as error:
                expected: Any = (RolemeshError, OSError)
                if not isinstance(error, expected):
                    log.exception("%s failed", name)
                self._answer(failed(str(error) or type(error).__name__))

        threading.Thread(target=guarded, name=name, daemon=True).start()


def _homes(state: JobState, lost: Collection[str]) -> tuple[dict[RankRef, str], dict[str, str], set[str]]:
    """Return the agent of each rank, the node of each agent ("": not usable), and all nodes believed alive."""
    living = {
        name: a.place.node
        for name, a in state.agents.items()
        if a.state in ("starting", "up") and a.place.node not in lost
    }
    agents = {name: living.get(name, "") if a.state == "up" else "" for name, a in state.agents.items()}
    return {key: record.agent for key, record in state.ranks.items()}, agents, {*living.values()}
