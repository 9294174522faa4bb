"""The agent's part of replicas: copies of its snapshots on the next node, and of other agents' snapshots here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.replicas.messages import Copying, CopyTo
from rolemesh_durable.extensions.replicas.replicas import Replicas
from rolemesh_durable.extensions.replicas.ring import NextAgent
from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess, Seen
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["NodeCopies"]

ALONE = (
    "snapshots.replicas is 1, but no other node has an agent of this job: nothing is copied, and snapshots in memory "
    "are lost with this node"
)


class NodeCopies(AgentPart):
    """Exchanges snapshots with other agents, if the job wants copies or ranks may move."""

    def __init__(self, process: AgentProcess) -> None:
        super().__init__(process)
        self._plan = process.config.job.snapshots
        self._next = NextAgent()
        self._fetches: dict[RankRef, RankLaunch] = {}
        self._replicas: Replicas | None = None
        if self._plan.replicas or process.config.job.serves:
            self._serve()

    def messages(self) -> Mapping[type, Callable[[Any], None]]:
        """The master's order."""
        return {CopyTo: self._copy_to}

    def _copy_to(self, order: CopyTo) -> None:
        if self._next.take(order) and self._replicas is not None:
            self._replicas.copies_to(order.address)

    def _serve(self) -> Replicas | None:
        """Let other agents fetch snapshots from here, if they cannot yet."""
        if self._replicas is None and self._plan.enabled:
            process = self._process
            self._replicas = Replicas(process.config, process.folder, process.machine().timeline)
        return self._replicas

    def adopted(self, living: Sequence[tuple[RankLaunch, int]]) -> None:
        """Copy the snapshots of these ranks from now on."""
        for launch, _ in living:
            self._restarted(launch)

    def starting(self, launch: RankLaunch) -> Mapping[str, str]:
        """Copy the rank's snapshots from now on; copies of steps after its restore count no more."""
        self._restarted(launch)
        return {}

    def _restarted(self, launch: RankLaunch) -> None:
        if self._replicas is not None:
            role, rank = launch.ref
            generation, resume = launch.generation, launch.resume
            self._replicas.restarted(role, rank, resume, generation, collective=launch.collective)

    def gone(self, start: StartRef) -> None:
        """Copy the last snapshot of the rank without waiting for others of its group."""
        if self._replicas is not None:
            self._replicas.gone(*start.ref)

    def durable(self, ref: RankRef, step: int) -> int:
        """Return the newest step with a copy on another node, if there is another one."""
        if self._replicas is None or not self._plan.replicas or self._next.alone:
            return step
        self._replicas.offer(*ref, step)
        return self._next.durable(step, self._replicas.replicated(*ref))

    def fetch(self, launch: RankLaunch) -> bool:
        """Bring the rank's snapshot here."""
        replicas = self._serve()
        if replicas is None:
            return False
        self._fetches[launch.ref] = launch
        replicas.fetch(launch.replica, launch.role, launch.rank, launch.resume)
        return True

    def forget(self, timeline: int) -> None:
        """Drop all copies."""
        if self._replicas is not None:
            self._replicas.clear(timeline)

    def look(self) -> Seen:
        """Pass on the ends of fetches. Return the copies that are kept here for others."""
        process = self._process
        advance = process.machine().advance
        if advance is not None and process.config.node in advance.draining:
            self._serve()
        replicas = self._replicas
        if replicas is None:
            return Seen()
        for role, rank, error in replicas.fetched():
            if (launch := self._fetches.pop(RankRef(role, rank), None)) is not None:
                process.put(e.Fetched(*launch.start, error))
        warning = "" if not self._plan.replicas else ALONE if self._next.alone else replicas.warning
        return Seen(tuple(replicas.held()), warning, replicas.refused, replicas.address)

    def report(self) -> Copying | None:
        """Confirm the master's newest order."""
        return self._next.confirmation

    def close(self) -> None:
        """Stop copying. Kept copies stay where they are."""
        if self._replicas is not None:
            self._replicas.close()
