"""The master's work per turn, in a job of many agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest
from tests.configs import in_master, master_config

from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.job import PluginUse
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

EACH = 2


class Scanned(dict[Any, Any]):
    """A dictionary that counts how often somebody goes through all of it."""

    scans = 0

    def items(self) -> Any:
        self.scans += 1
        return super().items()

    def values(self) -> Any:
        self.scans += 1
        return super().values()

    def __iter__(self) -> Iterator[Any]:
        self.scans += 1
        return super().__iter__()


Checks: TypeAlias = dict[str, PluginUse]


def scans(agents: int, checks: Checks) -> int:
    """How often the master looks at all ranks in a turn in which each of `agents` reports."""
    names = [f"node{i}" for i in range(agents)]
    launches = {
        name: tuple(m.RankLaunch("work", i * EACH + k, agents * EACH, k, EACH, 0) for k in range(EACH))
        for i, name in enumerate(names)
    }
    graph = LogicalGraph("g", (OpCall(0, "work", "do", "work.do", None),), ())
    places = tuple(AgentPlace(name, name, {"cpu": 8.0}) for name in names)
    snapshots = SnapshotPlan(enabled=True)
    config = master_config(graph, launches, places, steps=10**6, grant=1024, snapshots=snapshots, checks=checks)
    machine = MasterMachine(config, extensions=in_master())
    machine.handle(e.Begin(), 0.0)

    def reports(seq: int) -> list[e.Event]:
        return [e.FromAgent(name, m.Report(name, 1, seq, name, "10.0.0.1", 1, "", 1, 10**9, ())) for name in names]

    machine.turn(reports(1), 0.1)
    counted = machine.state.ranks = Scanned(machine.state.ranks)
    machine.turn(reports(2), 0.2)
    return counted.scans


@pytest.mark.parametrize("checks", [{}, {"matmul": PluginUse({}, {})}], ids=["no checks", "checks"])
def test_how_often_all_ranks_are_looked_at_does_not_grow_with_the_number_of_agents(
    checks: dict[str, PluginUse],
) -> None:
    assert scans(40, checks) == scans(4, checks)
