"""The ring of agents, and an agent's part that exchanges snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq
from tests.unit.engine.extensions.agent_process import FakeAgent

from rolemesh.api.rank_ref import RankRef
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.extensions.replicas.agent import NodeCopies
from rolemesh_durable.extensions.replicas.messages import Copying, CopyTo
from rolemesh_durable.extensions.replicas.ring import NextAgent, next_of
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

WORK = RankRef("work", 0)


def test_each_agent_copies_to_the_next_by_name() -> None:
    assert next_of(["b", "a", "c"], []) == {"a": "b", "b": "c", "c": "a"}


def test_an_agent_that_leaves_gets_no_copies_unless_it_is_the_only_other_one() -> None:
    assert next_of(["a", "b", "c"], ["b"]) == {"a": "c", "b": "c", "c": "a"}
    assert next_of(["a", "b"], ["b"]) == {"a": "b", "b": "a"}


def test_a_single_agent_has_no_next_one() -> None:
    assert next_of(["a"], []) == {}


def test_a_late_order_changes_nothing() -> None:
    agent = NextAgent()
    assert agent.take(CopyTo(2, 3, "tcp://b"))
    assert not agent.take(CopyTo(2, 2, ""))
    assert not agent.take(CopyTo(1, 9, ""))
    assert (agent.address, agent.confirmation) == ("tcp://b", Copying(2, 3))


def test_a_snapshot_without_a_copy_is_durable_only_if_there_is_no_other_agent() -> None:
    agent = NextAgent()
    assert agent.durable(5, -1) == -1, "the agent does not know yet"
    agent.take(CopyTo(1, 1, "tcp://b"))
    assert (agent.durable(5, -1), agent.durable(5, 3)) == (-1, 3)
    agent.take(CopyTo(1, 2, ""))
    assert agent.durable(5, -1) == 5


class Node:
    """An agent's part, in a folder of its own."""

    def __init__(self, folder: Path, keys: TransportKeys, replicas: int) -> None:
        folder.mkdir()
        self.agent = FakeAgent(folder)
        job = SimpleNamespace(snapshots=SnapshotPlan(True, replicas=replicas), keys=keys, serves=False)
        config: Any = SimpleNamespace(agent="a", host="127.0.0.1", node="n", job=job)
        self.folder, self.part = folder, NodeCopies(self.agent.process._replace(config=config))

    def order(self, number: int, address: str) -> None:
        self.part.messages()[CopyTo](CopyTo(1, number, address))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    pairs = [tuple(key.decode() for key in zmq.curve_keypair()) for _ in range(2)]
    keys, made = TransportKeys(*pairs[0], *pairs[1]), []

    def make(replicas: int = 1) -> Node:
        made.append(Node(tmp_path / str(len(made)), keys, replicas))
        return made[-1]

    yield make
    for each in made:
        each.part.close()


def test_the_part_warns_if_there_is_no_other_agent(node: Callable[..., Node]) -> None:
    alone = node()
    assert alone.part.look().warning == ""
    alone.order(1, "")
    assert "no other node has an agent of this job: nothing is copied" in alone.part.look().warning
    alone.order(2, "tcp://127.0.0.1:1")
    assert alone.part.look().warning == ""
    assert alone.part.report() == Copying(1, 2)


def test_a_snapshot_is_durable_once_the_next_agent_has_a_copy_which_a_third_one_fetches(
    node: Callable[..., Node], until: Callable[..., Any]
) -> None:
    first, second = node(), node()
    MemorySnapshots(first.folder, *WORK).write(4, {"x": np.arange(10)}, log=0, persist=False)
    launch = m.RankLaunch(*WORK, 1, 0, 1, 0)
    first.part.starting(launch)
    first.order(1, second.part.look().address)
    until(lambda: first.part.durable(WORK, 4) == 4)
    until(lambda: second.part.look().stored == (m.Stored(*WORK, (4,), copy=True),))
    third = node(0)
    assert third.part.look().address == "", "it does not serve before it has to"
    elsewhere = m.RankLaunch(*WORK, 1, 0, 1, 1, resume=4, restore="memory", replica=second.part.look().address)
    assert third.part.fetch(elsewhere)
    until(lambda: third.part.look() and not third.agent.events.empty())
    assert third.agent.events.get() == ae.Fetched(*elsewhere.start)
    assert MemorySnapshots(third.folder, *WORK).steps() == (4,)


def test_a_job_without_copies_has_durable_snapshots_at_once(node: Callable[..., Node]) -> None:
    assert node(0).part.durable(WORK, 7) == 7
