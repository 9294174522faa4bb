"""A job of 10,000 ranks starts and loses one: the master's CPU and its messages, in its machines. Starts no process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from typing import Any

from tests.configs import in_master, master_config

from benchmarks.report import Report, ratios
from benchmarks.running import ROOT
from rolemesh.api.failures import RecoveryPlan
from rolemesh.api.partition import Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.agent.machine import AgentMachine
from rolemesh_durable.protocol.agent.reporting import Identity
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import events as me
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.neighbours import Neighbours
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

ROLES = {"data": 104, "rollout": 4096, "reward": 1704, "trainer": 4096}
EACH = 8
"""Ranks of an agent."""
TURN_S = 0.05
MB, KB = 1e6, 1e3


def measure(quick: bool) -> Report:
    """The start: ≤ 10 × the encoding of its messages, ≤ 100 KB to an agent; a failure costs what its peers cost."""
    report = Report("start_many", "10,000 ranks start and one is lost: the master's CPU and messages", quick)
    scale = 16 if quick else 1
    found = [_apart(str(scale)) for _ in range(1 if quick else 3)]
    ranks = int(found[0]["ranks"])
    report.row(f"start of {ranks:,} ranks: master's CPU", "s", [each["start_cpu_s"] for each in found])
    report.row("start: of that, encoding and decoding messages", "s", [each["start_coded_s"] for each in found])
    report.row("start: to the agent that is told most", "KB", [each["start_most_kb"] for each in found])
    report.row("start: to all agents", "MB", [each["start_mb"] for each in found])
    report.row("start: of that, who is where", "MB", [each["start_wire_mb"] for each in found])
    report.row("one rank lost: master's CPU until it is back", "s", [each["lost_cpu_s"] for each in found])
    report.row("one rank lost: to all agents, but signs of life", "KB", [each["lost_kb"] for each in found])
    report.row("one rank lost: agents that are told of it", "agents", [each["lost_agents"] for each in found])
    share = ratios([each["start_cpu_s"] for each in found], [each["start_coded_s"] for each in found])
    report.claim("the start: the master's CPU / its messages' encoding and decoding", share, at_most=10)
    report.claim("to any agent, for the start", [each["start_most_kb"] for each in found], at_most=100, unit="KB")
    report.claim("for a lost rank, to all agents", [each["lost_kb"] for each in found], at_most=100, unit="KB")
    report.claim("agents that hear of a lost rank", [each["lost_agents"] for each in found], at_most=6, unit="agents")
    report.settings = {"ranks": ranks, "agents": -(-ranks // EACH), "roles": {k: v // scale for k, v in ROLES.items()}}
    report.notes.append(
        "each in a process of its own; machines of the master and of every agent, messages encoded and decoded; turns "
        f"of {TURN_S * 1e3:g} ms; a rank says hello a turn after its fork and is ready a turn after it knows its peers"
    )
    return report


def _apart(*arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.start_many", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


# ------------------------------------------------------------------------------------------- in a process of its own


class Cluster:
    """A master's machine, and a machine for each agent, in turns."""

    def __init__(self, roles: dict[str, int]) -> None:
        names = list(roles)
        ops = tuple(OpCall(i, name, "do", f"{name}.do", None) for i, name in enumerate(names))
        edges = tuple(Edge(i, i, i + 1, "value", Split(), Split()) for i in range(len(names) - 1))
        self.graph = LogicalGraph("g", ops, edges)
        ranks = [(role, rank) for role, size in roles.items() for rank in range(size)]
        self.ranks = len(ranks)
        groups = [ranks[at : at + EACH] for at in range(0, len(ranks), EACH)]
        launches = {
            f"node{i}": tuple(m.RankLaunch(role, rank, roles[role], k, EACH, 0) for k, (role, rank) in enumerate(group))
            for i, group in enumerate(groups)
        }
        places = tuple(AgentPlace(name, name, {"cpu": 8.0}) for name in launches)
        snapshots, steps, limit_s = SnapshotPlan(enabled=True), 10**6, 600.0
        config = master_config(
            self.graph, launches, places, steps=steps, grant=1024, start_timeout_s=limit_s, snapshots=snapshots
        )

        def recover(failure: Any, view: Any) -> Any:
            return RecoveryPlan(view.lost_with(failure))

        self.master = MasterMachine(config, ladder_of(recover), extensions=in_master())
        self.neighbours = Neighbours(self.graph, roles)
        self.agents: dict[str, Any] = {}
        self.now = 0.0
        self.cpu_s = 0.0
        self.coded_s = 0.0
        self.inbox: list[Any] = [me.Begin()]
        self.soon: dict[str, list[Any]] = defaultdict(list)
        self.sent: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()

    def turn(self) -> None:
        """A turn of the master, then one of every agent."""
        self.now += TURN_S
        events, self.inbox = self.inbox, []
        began = time.process_time()
        decoded = [
            me.FromAgent(event[0], m.decode_agent_to_master(event[1])) if isinstance(event, tuple) else event
            for event in events
        ]
        self.coded_s += time.process_time() - began
        effects = self.master.turn([*decoded, me.Tick()], self.now)
        turned = time.process_time()
        told = [
            (effect.agent, type(effect.message).__name__, m.encode(effect.message))
            if isinstance(effect, me.ToAgent)
            else effect
            for effect in effects
        ]
        ended = time.process_time()
        self.coded_s += ended - turned
        self.cpu_s += ended - began
        soon, self.soon = self.soon, defaultdict(list)
        for effect in told:
            if isinstance(effect, tuple):
                agent, kind, data = effect
                self.sent[agent] += len(data) if kind != "Watermarks" else 0
                self.kinds[kind] += len(data)
                soon[agent].append(ae.FromMaster(m.decode_master_to_agent(data)))
            elif isinstance(effect, me.StartAgents):
                for start in effect.agents:
                    name = start.place.agent
                    self.agents[name] = AgentMachine(
                        Identity(name, name, start.incarnation, "10.0.0.1"), 10.0, self.neighbours
                    )
        for name, agent in self.agents.items():
            for event in (*soon[name], ae.Sampled()):
                for effect in agent.handle(event, self.now):
                    self._agent(name, effect)

    def _agent(self, name: str, effect: Any) -> None:
        match effect:
            case ae.ToMaster(message):
                self.inbox.append((name, m.encode(message)))
            case ae.Fork(launch):
                who = launch.role, launch.rank, launch.generation
                addresses = {
                    "local": f"ipc:///tmp/rolemesh-0123abcd-01234567/{who[0]}-{who[1]}-{who[2]}-inbox",
                    "remote": f"tcp://10.0.0.1:{40000 + launch.rank}",
                    "control": f"ipc:///tmp/rolemesh-0123abcd-01234567/{who[0]}-{who[1]}-{who[2]}-inbox",
                }
                self.soon[name].append(ae.FromRank(m.RankHello(*who, 1000, addresses)))
            case ae.ToRank(role, rank, m.Connect(peers)):
                mine = next((peer for peer in peers if peer.ref == (role, rank)), None)
                if mine is not None:
                    self.soon[name].append(ae.FromRank(m.RankReady(role, rank, mine.generation, 0.1)))
            case ae.Kill(role, rank, generation):
                self.soon[name].append(ae.RankExited(role, rank, generation, signal=9))

    def settle(self, generation: int, key: tuple[str, int]) -> None:
        """Until all run, `key` in `generation`."""
        for _ in range(2000):
            self.turn()
            record = self.master.state.ranks[key]
            if (
                self.master.state.phase == "running"
                and record.state == "running"
                and record.launch.generation == generation
            ):
                for _ in range(5):
                    self.turn()  # until everybody has confirmed
                return
        raise AssertionError(f"{self.master.state.phase} {self.master.state.message}")


def ladder_of(recover: Any) -> Any:
    """A ladder of one level without a limit."""
    from rolemesh_durable.protocol.master.ladder import LadderLevel

    return (LadderLevel("process", "process", 10**6, 300.0, recover),)


def many(scale: int) -> dict[str, float]:
    """Start, then lose one rank."""
    cluster = Cluster({role: size // scale for role, size in ROLES.items()})
    lost = ("rollout", 7)
    cluster.settle(0, lost)
    start = {
        "ranks": cluster.ranks,
        "start_cpu_s": cluster.cpu_s,
        "start_coded_s": cluster.coded_s,
        "start_most_kb": max(cluster.sent.values()) / KB,
        "start_mb": cluster.sent.total() / MB,
        "start_wire_mb": cluster.kinds["Addresses"] / MB,
    }
    cluster.sent.clear()
    cluster.cpu_s = 0.0
    home = cluster.master.state.ranks[lost].agent
    cluster.soon[home].append(ae.RankExited(*lost, 0, signal=9))
    cluster.settle(1, lost)
    agents = sum(1 for size in cluster.sent.values() if size)
    return start | {"lost_cpu_s": cluster.cpu_s, "lost_kb": cluster.sent.total() / KB, "lost_agents": agents}


if __name__ == "__main__":
    print(json.dumps(many(int(sys.argv[1]))))
