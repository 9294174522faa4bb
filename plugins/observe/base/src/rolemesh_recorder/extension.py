"""The extension `recorder`, which every job has unless it switches it off."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from rolemesh_durable.api.extensions import Extension
from rolemesh_recorder.options import RecorderOptions

if TYPE_CHECKING:
    from rolemesh_durable.api.extensions import AgentProcess, MasterShell, Rank, RankPlace, ShellPart
    from rolemesh_recorder.node_record import NodeRecord
    from rolemesh_recorder.rank_record import RankRecord

__all__ = ["Recorder"]


class Recorder(Extension):
    """Records where the time of each rank went, what each node did, and the job's flow.

    Each process of a rank has an instance.
    """

    Options: ClassVar[type[BaseModel]] = RecorderOptions
    options: RecorderOptions
    preload: ClassVar[Sequence[str]] = ("rolemesh_recorder.extension", "rolemesh_recorder.rank_record")

    def __init__(self, options: BaseModel) -> None:
        super().__init__(options)
        self._times: dict[str, int] = {}
        self._node = ""
        self._transports: Collection[Any] = ()

    def started(self, place: RankPlace) -> None:
        """Note the time."""
        self._times["starting"] = time.monotonic_ns()
        self._node = place.start.node
        self._transports = place.endpoint.transports.values()

    def before_setup(self, place: RankPlace) -> None:
        """Note the time."""
        self._times["setup"] = time.monotonic_ns()

    def in_rank(self, rank: Rank) -> RankRecord | None:
        """Take part in every rank."""
        if not self.options.enabled:
            return None
        from rolemesh_recorder.rank_record import RankRecord  # imports a rank's modules, which the driver does without

        self._times["restoring"] = time.monotonic_ns()
        return RankRecord(rank, self.options, self._node, os.getpid(), self._times, self._traffic)

    def _traffic(self) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for transport in self._transports:
            for edge, (nbytes, left) in transport.traffic().items():
                before = found.get(edge, (0, 0))
                found[edge] = before[0] + nbytes, before[1] + left
        return found

    def in_shell(self, shell: MasterShell) -> ShellPart | None:
        """Write the flow, in the master's process."""
        if not self.options.enabled:
            return None
        from rolemesh_recorder.flow_file import FlowWriter  # imports the master's modules, which ranks do without

        return FlowWriter(shell)

    def in_agent(self, process: AgentProcess) -> NodeRecord | None:
        """Watch the agent's node."""
        if not self.options.enabled:
            return None
        from rolemesh_recorder.node_record import NodeRecord  # imports the agent's modules, which ranks do without

        return NodeRecord(process, int(self.options.max_mb * 1_000_000))
