"""Lives of jobs, as observers see them: one with every notification, and some with unusual numbers."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from random import Random
from typing import Any, Literal, TypeAlias

import msgspec

from rolemesh.api.failures import Failure
from rolemesh.api.observer import AgentStatus, Event, JobStatus, Missed, RankStatus, RoleTimes, RunInfo, StepMetrics

__all__ = ["EVENTS", "HOOKS", "Life", "Told", "drawn_metrics", "result", "run", "told", "whole_life"]

HOOKS = ("job_started", "event", "steps_finished", "status", "missed", "job_ended")
ROLES = {"actor": 2, "critic": 1}
OPERATORS = ("actor.sample", "critic.score")
NAMES = ("reward", "loss", "actor/loss", "a b", "größe", "..", "../../up", "x" * 300, "step", "")
BEGUN = 1.7e9

Outcome: TypeAlias = Literal["done", "failed", "interrupted"]
Told: TypeAlias = tuple[str, dict[str, Any]]
"""A hook and its arguments."""

_FAILURE = Failure("exception", "actor", 1, "node-0", "sample", 2, "RuntimeError: boom", '  File "flow.py", line 3\n')

EVENTS: dict[str, dict[str, Any]] = {
    "job_started": {"name": "job", "steps": 6, "agents": ["node-0/0"], "ranks": 3, "at": 0.0},
    "agent_started": {"agent": "node-0/0", "node": "node-0", "incarnation": 0, "resources": {"cpu": 3.0}},
    "agent_up": {"agent": "node-0/0", "node": "node-0", "incarnation": 0, "pid": 10, "host": "127.0.0.1"},
    "environment": {"agent": "node-0/0", "node": "node-0", "message": "makes the environment of actor"},
    "rank_up": {"role": "actor", "rank": 0, "generation": 0, "pid": 11, "node": "node-0"},
    "rank_ready": {"role": "actor", "rank": 0, "generation": 0, "setup_s": 0.5},
    "job_running": {"at": 1.0},
    "persisted": {"step": 1},
    "snapshot_warning": {"agent": "node-0/0", "message": "the disk is full"},
    "snapshot_warning_over": {"agent": "node-0/0", "message": "the disk is full"},
    "snapshot_damaged": {"message": "step 1 is damaged"},
    "connections_refused": {"agent": "node-0/0", "node": "node-0", "count": 2},
    "injected": {"kind": "kill", "target": "actor/1"},
    "child_killed": {"target": "actor/1", "pid": 7, "name": "python"},
    "hang": {"text": "actor/1 has been in sample for 60 s", "stacks": "Thread 1", "roles": ["actor"]},
    "slow_operator": {"role": "actor", "rank": 1, "step": 3, "operator": "actor.act", "seconds": 70.0, "allowed_s": 90},
    "straggler": {"role": "actor", "rank": 1, "message": "actor/1 takes 3 times as long as the others"},
    "failure": {"failure": msgspec.to_builtins(_FAILURE), "silent_s": 0.1, "at": 2.0},
    "agent_lost": {"agent": "node-0/0", "incarnation": 0, "node": "node-0", "why": "killed", "node_lost": False},
    "node_lost": {"agent": "node-0/0", "incarnation": 0, "node": "node-0"},
    "agent_died": {
        "agent": "node-1/0",
        "incarnation": 0,
        "node": "node-1",
        "why": "killed",
        "times": 1,
        "committed": 3,
    },
    "agent_left": {"agent": "node-1/0", "incarnation": 0, "node": "node-1", "why": "it has ended", "node_lost": False},
    "recovery_planned": {
        "number": 1,
        "attempt": 2,
        "plan": {"level": "process", "restart": [["actor", 1]], "reason": "again", "avoid": [], "delay_s": 0.5},
        "trail": ["actor/1: boom"],
        "at": 2.1,
    },
    "suspects_used": {"number": 1, "nodes": ["node-0"], "missing": "cpu 1"},
    "waiting_for_nodes": {"number": 1, "missing": "cpu 1", "wait_s": 30.0},
    "replanned": {"moves": [], "places": []},
    "recovery_launched": {"number": 1, "ranks": [["actor", 1]], "at": 2.2},
    "recovery_failed": {"number": 1, "level": "process", "why": "no place"},
    "recovered": {"number": 2, "restarted": ["actor/1"], "seconds": 0.7, "at": 3.0},
    "regained": {"number": 2, "at": 3.5},
    "rolled_back": {"step": -1, "folder": "", "lost_steps": 3, "timeline": 1, "calls": ["mail.send"]},
    "master_recovered": {"epoch": 2, "phase": "running", "at": 3.6},
    "node_checked": {
        "agent": "node0",
        "incarnation": 1,
        "node": "n",
        "measured": [{"check": "matmul", "values": {"x": 1.0}}],
    },
    "nodes_banned": {"nodes": {"n": 60.0}, "recovery": 2, "level": "chances", "at": 3.7},
    "ban_lifted": {"node": "n", "why": "its time is over", "at": 63.7},
    "job_detached": {},
    "ladder_exhausted": {"trail": ["actor/1: boom", "  process: tried 5 times"]},
    "rank_done": {"role": "actor", "rank": 0, "generation": 0, "finished": 5, "sha256": "ab"},
    "job_finishing": {"reason": "enough", "at": 8.0},
    "stop_point": {"step": 5, "then": "end", "reason": "enough"},
    "lines_cut": {"step": 2049, "every": 64},
    "resize_asked": {"number": 1, "sizes": {"actor": 2}, "reason": "rolemesh scale", "at": 8.1},
    "layout_changed": {
        "number": 1,
        "layout": {"number": 1, "step": 4, "folder": "step-4", "sizes": {"actor": 2}, "since": {"actor": 4}},
        "roles": ["actor"],
        "groups": [],
        "moves": [],
        "places": [],
        "plan": {},
    },
    "resized": {"number": 1, "step": 4, "sizes": {"actor": 2}, "seconds": 0.3, "at": 8.5},
    "resize_refused": {"number": 2, "why": "there is no room", "at": 8.6},
    "drain_asked": {"node": "node-1", "reason": "rolemesh drain", "at": 8.6},
    "drain_waiting": {"nodes": ["node-1"], "missing": "actor/1 needs cpu 1, none is free"},
    "drained": {"node": "node-1", "seconds": 0.4, "at": 8.9},
    "drain_over": {"node": "node-1", "why": "it is gone"},
    "job_stopping": {"status": "interrupted", "message": "somebody asked", "grace_s": 5.0, "at": 9.0},
    "agent_stopped": {"agent": "node-0/0"},
    "job_ended": {"status": "done", "message": "", "committed": 5},
    "a_kind_of_a_later_kernel": {"anything": [1, {"deep": None}]},
}
"""Data of an event of every journalled kind, and of one kind that this kernel does not know."""


class Life(msgspec.Struct, frozen=True):
    """The metrics of a job's steps. `shuffle` is the seed for the order of hooks in a disorderly life."""

    metrics: tuple[StepMetrics, ...]
    shuffle: int = 0


def run(run_dir: str, steps: int = 6, origin: str = "", backend: str = "local") -> RunInfo:
    """Return a run of two roles."""
    return RunInfo("job", run_dir, steps, dict(ROLES), OPERATORS, backend, origin)


def _metrics(step: int, steps: int = 6, values: dict[str, float] | None = None) -> StepMetrics:
    times = {role: RoleTimes(0.5, 0.2, 0.1) for role in ROLES}
    operators = {label: {"seconds": 0.5} for label in OPERATORS}
    return StepMetrics(step, steps, BEGUN + step, values or {"reward": 0.1 * step}, operators, times, {"edge": 1.0})


def result(run_dir: str, outcome: Outcome = "done", steps: int = 6) -> dict[str, Any]:
    """Return the content of ``result.json``."""
    found: dict[str, Any] = {
        "name": "job",
        "job_id": "job-1",
        "status": outcome,
        "message": "" if outcome == "done" else "boom",
        "exit_code": {"done": 0, "failed": 1, "interrupted": 130}[outcome],
        "steps": steps,
        "committed_steps": steps,
        "wall_s": 9.0,
        "state_sha256": {"actor": "ab", "critic": None},
        "plugins": {},
        "run_dir": run_dir,
        "restored_step": -1,
        "persisted_step": 3,
        "refused_connections": 0,
        "recoveries": [],
        "goodput": None,
    }
    if outcome == "failed":
        found |= {"failure": msgspec.to_builtins(_FAILURE), "failures": ["actor/1: boom"]}
    return found


def told(run_dir: str, metrics: tuple[StepMetrics, ...], *, outcome: Outcome = "done", origin: str = "") -> list[Told]:
    """Return a life with these metrics, one line at a time, in the usual order."""
    steps = metrics[-1].steps if metrics else 0
    ranks = tuple(RankStatus(role, n, "node-0", 11, "running", 0) for role, size in ROLES.items() for n in range(size))
    agents = (AgentStatus("node-0/0", "node-0", 10, "up"),)
    found: list[Told] = [("job_started", {"run": run(run_dir, steps, origin)})]
    for state, committed in (("starting", -1), ("running", 0)):
        status = JobStatus("job", state, 1, committed, steps, BEGUN, 9, "node-0", agents, ranks)
        found.append(("status", {"status": status}))
    found += [("steps_finished", {"metrics": (line,)}) for line in metrics]
    return [*found, ("job_ended", {"result": result(run_dir, outcome, steps)})]


def whole_life(run_dir: str, outcome: Outcome = "done") -> list[Told]:
    """Return a life with six steps and an event of every kind."""
    calm = told(run_dir, tuple(_metrics(step) for step in range(6)), outcome=outcome)
    missed = Missed(events=2, first_event=3, last_event=4, lines=1, first_step=0, last_step=0)
    return [*calm[:3], *_events(), ("missed", {"missed": missed}), *calm[3:]]


def _events() -> Iterator[Told]:
    for seq, (kind, data) in enumerate(EVENTS.items(), start=1):
        copy = msgspec.json.decode(msgspec.json.encode(data))
        yield "event", {"event": Event(seq, 1, BEGUN + seq, kind, copy)}


def drawn_metrics(random: Random) -> Life:
    """Draw metrics that come and go. Their values may be no numbers, of any size, and under any name."""

    def number() -> float:
        return random.choice((random.random(), 0.0, -1.0, nan, inf, -inf, 1e300, -1e300, 1e-300, 123456789.0))

    def numbers() -> dict[str, float]:
        return {name: number() for name in random.sample(NAMES, random.randint(0, len(NAMES)))}

    begun, steps = random.choice((0, 0, 40)), random.randint(0, 12)
    every = random.choice((1, 1, 3))
    lines = tuple(
        StepMetrics(
            step,
            begun + steps,
            BEGUN + random.choice((step, 0, -step)),
            numbers(),
            {label: numbers() for label in random.sample(OPERATORS, random.randint(0, 2))},
            {
                role: RoleTimes(number(), number(), number())
                for role in random.sample(list(ROLES), random.randint(0, 2))
            },
            numbers(),
            {"table": random.choice(([], [[1, "x"], [None]], {"a": {"b": 1}}, "text", 1, None))},
        )
        for step in range(begun, begun + steps, every)
    )
    return Life(lines, random.randint(0, 1 << 30))
