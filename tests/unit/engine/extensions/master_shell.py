"""A job of one rank that runs, and a shell for the extensions' parts of a master's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.configs import in_master, master_config

from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.shell import MasterShell
from rolemesh_durable.protocol.master.transitions import Transition
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

__all__ = ["FakeShell", "running", "told"]


def running(extensions: Sequence[Any] | None = None, **settings: Any) -> MasterMachine:
    """The machine of a job `work/0` on agent `a0` of node `n0`, which runs. None: the shipped extensions."""
    graph = LogicalGraph("g", (OpCall(0, "work", "do", "work.do", None),), ())
    launches = {"a0": (m.RankLaunch("work", 0, 1, 0, 1, 0),)}
    settings = {"snapshots": SnapshotPlan(enabled=False)} | settings
    config = master_config(graph, launches, (AgentPlace("a0", "n0", {"cpu": 1.0}),), **settings)
    machine = MasterMachine(config, extensions=in_master() if extensions is None else extensions)
    machine.handle(e.Begin(), 0.0)
    for now, state in ((0.1, None), (0.2, "up"), (0.3, "ready")):
        told(machine, now, *([m.RankReport("work", 0, 0, state, 100)] if state else []))  # type: ignore[arg-type]
    assert machine.state.phase == "running"
    return machine


def told(machine: MasterMachine, now: float, *ranks: m.RankReport) -> list[e.Effect]:
    """The agent reports these ranks."""
    report = m.Report("a0", 1, int(now * 1000), "n0", "h", 1, "", 1, -1, ranks, (), (), (), "", 0, ())
    return machine.handle(e.FromAgent("a0", report), now)


class FakeShell:
    """A master's process that carries nothing out; `shell` is what extensions get of it."""

    def __init__(self, machine: MasterMachine) -> None:
        self.machine = machine
        self.events: list[e.Event] = []
        self.records: list[Transition] = []
        unused: Any = None
        self.shell = MasterShell(
            unused, unused, lambda: machine, (), self.events.append, self._beside, self._journal, unused
        )

    def _beside(self, name: str, task: Callable[[], None], failed: Callable[[str], e.Event]) -> None:
        try:
            task()
        except Exception as error:
            self.events.append(failed(str(error)))

    def _journal(self, record: Transition, then: Callable[[], object]) -> None:
        self.records.append(record)
