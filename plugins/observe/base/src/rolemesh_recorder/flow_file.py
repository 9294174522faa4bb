"""Writes ``record/flow.json``: the traced flow, for viewers that have only the run's folder."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import msgspec

from rolemesh.runs.run import write_json
from rolemesh_durable.api.extensions import MasterShell, ShellPart
from rolemesh_recorder.lines import FLOW_FILE, RECORD_DIR, FlowEdge, FlowFile, FlowOp

__all__ = ["FlowWriter"]

LOG = logging.getLogger(__name__)


class FlowWriter(ShellPart):
    """Writes the file once per master, in a thread, because the disk may be slow."""

    def __init__(self, shell: MasterShell) -> None:
        super().__init__(shell)
        self._config = shell.config
        threading.Thread(target=self._write, name="recorder: flow", daemon=True).start()

    def _write(self) -> None:
        job = self._config.job
        graph = job.graph
        ops = tuple(FlowOp(op.id, op.role, op.label, op.every, op.at, op.calls) for op in graph.ops)
        edges = tuple(
            FlowEdge(e.id, e.src, e.dst, e.param, f"{e.src_partition} → {e.dst_partition}", e.lag_shown, e.credits)
            for e in graph.edges
        )
        uses = {role: str(msgspec.to_builtins(use.record).get("name", "")) for role, use in job.roles.items()}
        launches = (launch for each in self._config.launches.values() for launch in each if launch.turns)
        turns = tuple(sorted({tuple(sorted({mate.role for mate in launch.turns})) for launch in launches}))
        folder = Path(job.run_dir) / RECORD_DIR
        sizes, ranges = dict(job.world_sizes), dict(self._config.ranges)
        flow = FlowFile(graph.name, ops, edges, sizes, uses, graph.callers, turns, ranges)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / FLOW_FILE, flow)
        except OSError as error:
            LOG.warning("%s cannot be written: %s; viewers will lack the job's flow", folder / FLOW_FILE, error)
