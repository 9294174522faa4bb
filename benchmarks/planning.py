"""Plans for 10,000 ranks on 1,250 nodes, by each strategy; and a master that hears as many agents. Starts no job."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Report, ratios
from benchmarks.running import ROOT

NODES = "625x(cpu=96,gpu=8,label.rack=a),625x(cpu=96,gpu=8,label.rack=b)"
MB = 1e6
STRATEGIES: dict[str, tuple[str, dict[str, Any]] | None] = {
    "pack": None,
    "collocation": (
        "rolemesh_collocation",
        {"groups": [{"roles": ["trainer", "rollout"], "ratio": {"trainer": 4, "rollout": 4}}]},
    ),
    "separation": (
        "rolemesh_separation",
        {"apart": [{"groups": ["trainer", "rollout"], "by": "label.rack"}], "spread": {"data": "node"}},
    ),
    "subgraph": ("rolemesh_subgraph", {}),
    "pd": ("rolemesh_pd", {"prefill": "rollout", "decode": "trainer"}),
}
SECONDS = 10
"""Seconds of heartbeats that the benchmark sends to the master."""


def measure(quick: bool) -> Report:
    """A plan takes ≤ 300 × the writing of it as JSON, and ≤ 500 MB; heartbeats ≤ 60 × their decoding alone."""
    report = Report("planning", "10,000 ranks on 1,250 nodes: plans, and the master's share of heartbeats", quick)
    rounds = 1 if quick else 5
    found: dict[str, list[dict[str, float]]] = {name: [] for name in STRATEGIES}
    beats: list[dict[str, float]] = []
    for _ in range(rounds):
        for name in STRATEGIES:
            found[name].append(_apart("plan", name))
        beats.append(_apart("heartbeats", "2" if quick else str(SECONDS)))
    for name, samples in found.items():
        report.row(f"{name}: plan", "s", [sample["seconds"] for sample in samples])
    report.row("the plan in words (explain)", "s", [sample["explained_s"] for sample in found["pack"]])
    report.row(
        "most memory of a process that plans",
        "MB",
        [max(s["mb"] for s in per) for per in zip(*found.values(), strict=True)],
    )
    report.row("heartbeats: master's CPU for a second of them", "s", [beat["cpu_per_s"] for beat in beats])
    report.row("heartbeats: decoding them alone", "s", [beat["decoded_per_s"] for beat in beats])
    for name, samples in found.items():
        share = ratios([sample["seconds"] for sample in samples], [sample["explained_s"] for sample in samples])
        report.claim(f"{name}: the plan / writing it as JSON", share, at_most=300)
    every = [sample["mb"] for samples in found.values() for sample in samples]
    report.claim("memory of the process", every, at_most=500, unit="MB")
    share = ratios([beat["cpu_per_s"] for beat in beats], [beat["decoded_per_s"] for beat in beats])
    report.claim("heartbeats: the master's CPU / decoding them alone", share, at_most=60)
    report.settings = {"ranks": 10_000, "nodes": 1_250, "agents' reports": "one a second, 8 ranks each"}
    report.notes.append(
        "each plan in a process of its own, imports not counted; every plan is made twice and both must be equal; the "
        "heartbeats are encoded reports that go through the master's machine in turns of 50 ms, every rank one step on"
    )
    return report


def _apart(*arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.planning", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


# ------------------------------------------------------------------------------------------- in a process of its own


def plan(name: str) -> dict[str, float]:
    """Plan with one strategy; seconds and MB."""
    import importlib

    from rolemesh.api.plugin import NoOptions
    from rolemesh.job.planning import plan_job
    from rolemesh.placement import PlacementRequest, RoleRequest, Transfer
    from rolemesh.placement.nodes import parse_nodes
    from rolemesh_pack import PackScheduler

    request = PlacementRequest(
        (
            RoleRequest("trainer", 4096, cpu=4, gpu=1, group="collective"),
            RoleRequest("rollout", 4096, cpu=2, gpu=1),
            RoleRequest("reward", 1704, cpu=4),
            RoleRequest("data", 104, cpu=1),
        ),
        (
            Transfer("data", "rollout", bytes=1 * MB),
            Transfer("rollout", "reward", bytes=200 * MB),
            Transfer("reward", "trainer", bytes=200 * MB),
            Transfer("trainer", "rollout", "all", bytes=1000 * MB),
        ),
    )
    cluster = parse_nodes(NODES)
    pack = ("pack", PackScheduler(NoOptions()).place)
    strategies = [pack]
    if (chosen := STRATEGIES[name]) is not None:
        module = importlib.import_module(chosen[0])
        scheduler = next(cls for cls in vars(module).values() if hasattr(cls, "place"))
        strategies = [(name, scheduler(scheduler.Options.model_validate(chosen[1])).place), pack]
    began = time.perf_counter()
    made = plan_job(request, cluster, strategies)
    seconds = time.perf_counter() - began
    assert len(made.assignments) == 10_000, made.unplaced[:1]
    assert plan_job(request, cluster, strategies) == made
    writing = []
    for _ in range(5):
        began = time.perf_counter()
        words = json.dumps([[a.role, a.rank, made.slots[a.slot].node, a.rule] for a in made.assignments])
        writing.append(time.perf_counter() - began)
    assert all(a.rule for a in made.assignments)
    # Not `ru_maxrss`, which a process has from the one that started it, too (getrusage(2), execve(2)).
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    mb = int(peak.split()[1]) / 1024
    return {"seconds": seconds, "explained_s": min(writing), "mb": mb, "bytes": len(words)}


def heartbeats(seconds: int) -> dict[str, float]:
    """A master of 1,250 agents with 8 ranks each, through some seconds of their reports."""
    from tests.configs import in_master, master_config

    from rolemesh.graph.logical import LogicalGraph, OpCall
    from rolemesh_durable.protocol import messages as m
    from rolemesh_durable.protocol.launcher import AgentPlace
    from rolemesh_durable.protocol.master import events as me
    from rolemesh_durable.protocol.master.machine import MasterMachine
    from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

    agents, each, turns = 1250, 8, 20
    names = [f"node{i}" for i in range(agents)]
    launches = {
        name: tuple(m.RankLaunch("work", i * each + k, agents * each, k, each, 0) for k in range(each))
        for i, name in enumerate(names)
    }
    graph = LogicalGraph("g", (OpCall(0, "work", "do", "work.do", None),), ())
    places = tuple(AgentPlace(name, name, {"cpu": 8.0}) for name in names)
    snapshots, steps, limit_s = SnapshotPlan(enabled=True), 10**6, 600.0
    config = master_config(
        graph, launches, places, steps=steps, grant=1024, start_timeout_s=limit_s, snapshots=snapshots
    )
    machine = MasterMachine(config, extensions=in_master())
    machine.handle(me.Begin(), 0.0)

    def reports(step: int, state: Any) -> list[tuple[str, bytes]]:
        found = []
        for i, name in enumerate(names):
            ranks = tuple(
                m.RankReport(
                    "work", i * each + k, 0, state, 100, {"tcp": "tcp://10.0.0.1:1"}, finished=step, durable=step
                )
                for k in range(each)
            )
            report = m.Report(name, 1, step + 10, name, "10.0.0.1", 1, "", 1, 10**9, ranks, (), (), (), "", 0)
            found.append((name, m.encode(report)))
        return found

    for step, state in ((-2, "up"), (-1, "ready")):
        machine.turn([me.FromAgent(n, m.decode_agent_to_master(r)) for n, r in reports(step, state)], 0.1)
    assert machine.state.phase == "running"
    spent = decoded = 0.0
    for second in range(seconds):
        arriving = reports(second, "ready")
        size = -(-agents // turns)
        for turn in range(turns):
            now = 1.0 + second + turn / turns
            batch = arriving[turn * size : (turn + 1) * size]
            began = time.process_time()
            for _, report in batch:
                m.decode_agent_to_master(report)
            decoded += time.process_time() - began
            began = time.process_time()
            events = [me.FromAgent(name, m.decode_agent_to_master(report)) for name, report in batch]
            for effect in machine.turn([*events, me.Tick()], now):
                if isinstance(effect, me.ToAgent):
                    m.encode(effect.message)
            spent += time.process_time() - began
    assert machine.state.committed == seconds - 1
    return {"cpu_per_s": spent / seconds, "decoded_per_s": decoded / seconds}


if __name__ == "__main__":
    kind, argument = sys.argv[1:]
    print(json.dumps(plan(argument) if kind == "plan" else heartbeats(int(argument))))
