"""The cost of a SIGKILL of a rank, a rank of a group, an agent and the master, and of a resize and a drain.

The sides are our job, bare Ray actors and DLRover.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.actor_restarts import ActorKill
from benchmarks.disturbed import AgentKill, Drain, MasterKill, RankKill, Resize, disturbed
from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, ROOT, BenchmarkError
from benchmarks.submit import DLROVER_ENV, ray_head

JOB = JOBS / "failover.yaml"
RANKS = 5
NODES = "3x(cpu=0.3)"
"""For drains: two nodes with ranks, of which the second has two single ones, and a third with room for these."""
VICTIMS = {"single": "a rank", "heavy": "a rank that imports torch", "trainer": "a rank of an FSDP2 group of 2"}
"""Roles of the job, in words."""
DLROVER_KINDS = {"simple": "a worker of a simple role", "elastic": "a worker of an elastic role of 2"}


def measure(quick: bool) -> Report:
    """A rank in half the time of a bare Ray actor, its own set-up apart; the master restarts nothing."""
    report = Report("failover", "seconds from SIGKILL to stepping again", quick)
    rounds, kills, dlrover_rounds = (1, 1, 0) if quick else (3, 3, 2)
    dlrover = os.environ.get(DLROVER_ENV)
    if not dlrover:
        report.skipped.append(
            f"DLRover: {DLROVER_ENV} is not set; see benchmarks/README.md for the Python that it should point to"
        )
    found = {"local": Ours()} if quick else {"local": Ours(), "Ray": Ours()}
    bare: dict[str, list[ActorKill]] = {"single": [], "heavy": []}
    theirs: dict[str, list[dict[str, Any]]] = {"simple": [], "elastic": [], "master": []}
    for number in range(rounds):
        found["local"].disturb(kills, "--backend", "local")
        found["local"].drain(kills)
        with ray_head(sys.executable) as address:
            for name, actor_kills in bare_kills(address, kills).items():
                bare[name] += actor_kills
            if "Ray" in found:
                found["Ray"].disturb(kills, "--address", address)
        if dlrover and number < dlrover_rounds:
            for kind, answers in theirs.items():
                with ray_head(dlrover) as address:
                    answers.append(dlrover_kill(dlrover, address, kind))
    actor = [kill.seconds for kill in bare["single"]]
    for name, measured in found.items():
        measured.tell(report, name, actor)
    _tell_bare(report, bare)
    backend, ours = list(found.items())[-1]
    share = ratios([kill.seconds for kill in bare["single"]], [kill.seconds for kill in ours.ranks["single"]])
    report.claim(f"a rank: bare Ray actor / rolemesh, {backend}", share, at_least=1)
    if any(theirs.values()):
        _tell_dlrover(report, theirs)
        for kind, role in (("simple", "single"), ("elastic", "trainer")):
            again = {number: one["seconds"] for number, one in enumerate(theirs[kind]) if one["seconds"]}
            if again:
                of_ours = [ours.ranks[role][kills * number].seconds for number in again]
                what = f"{VICTIMS[role]}: DLRover, {kind} role / rolemesh, {backend}"
                report.claim(what, ratios(list(again.values()), of_ours), at_least=1)
    report.settings = {"rounds": rounds, "kills of each kind in a round": kills, "ranks of the job": RANKS}
    report.notes.append(
        "rolemesh's times end when every rank that went down has finished a step that it had not finished before: "
        "state and inputs are there again. A bare actor's end with its next step, which starts from nothing"
    )
    report.notes.append(
        "what counts as a rank's own set-up is measured by the rank: imports, model, rendezvous of its group"
    )
    return report


class Ours:
    """The samples of our job on one backend."""

    def __init__(self) -> None:
        self.ranks: dict[str, list[RankKill]] = {role: [] for role in VICTIMS}
        self.masters: list[MasterKill] = []
        self.agents: list[AgentKill] = []
        self.resizes: list[Resize] = []
        self.drains: list[Drain] = []

    def disturb(self, kills: int, *backend: str) -> None:
        """Run the job once, kill each kind of thing so often, in turns, and take a rank of the group away and back."""
        with disturbed(JOB, backend=backend) as job:
            for _ in range(kills):
                for role, into in self.ranks.items():
                    into.append(job.kill_rank(role, 0, group=role == "trainer"))
                self.masters.append(job.kill_master())
                self.agents.append(job.kill_agent())
                self.resizes += [job.resize("trainer", size) for size in (1, 2)]

    def drain(self, times: int) -> None:
        """Run the job once on several nodes, and have one left so often."""
        with disturbed(JOB, backend=("--backend", "local", "--nodes", NODES)) as job:
            self.drains += [job.drain("single") for _ in range(times)]

    def tell(self, report: Report, backend: str, actor: Sequence[float]) -> None:
        """Rows and claims. `actor`: seconds in which a bare Ray actor was back, by kill."""
        for role, what in VICTIMS.items():
            kills = self.ranks[role]
            where = f"rolemesh, {backend}, {what}"
            seconds, load = [kill.seconds for kill in kills], [kill.load_s for kill in kills]
            report.row(f"{where}: until it steps again", "s", seconds)
            report.row(f"{where}: its own set-up, part of it", "s", load)
            restarted = [float(len(kill.restarted)) for kill in kills]
            report.row(f"{where}: restarted, of {RANKS}", "ranks", restarted)
            share = ratios(_less(seconds, load), actor)
            report.claim(f"{where}: without its own set-up / a bare actor", share, at_most=0.5)
            report.claim(f"{where}: restarted", restarted, at_most=2 if role == "trainer" else 1, unit="ranks")
        where = f"rolemesh, {backend}, the master"
        report.row(f"{where}: until one is back", "s", [kill.recovered_s for kill in self.masters])
        committed = [kill.committed_s for kill in self.masters]
        report.row(f"{where}: until it commits steps", "s", committed)
        report.row(f"{where}: steps of every rank until one is back", "steps", [float(k.steps) for k in self.masters])
        restarted = [float(len(kill.restarted)) for kill in self.masters]
        report.row(f"{where}: restarted, of {RANKS}", "ranks", restarted)
        limit = 0.5 if backend == "local" else 4
        report.claim(f"{where}: until it commits steps / a bare actor", ratios(committed, actor), at_most=limit)
        report.claim(f"{where}: restarted", restarted, at_most=0, unit="ranks")
        where = f"rolemesh, {backend}, an agent"
        controlled = [kill.controlled_s for kill in self.agents]
        restarted = [float(len(kill.restarted)) for kill in self.agents]
        report.row(f"{where}: until its ranks are under control again", "s", controlled)
        report.claim(f"{where}: until it controls its ranks / a bare actor", ratios(controlled, actor), at_most=limit)
        report.claim(f"{where}: restarted", restarted, at_most=0, unit="ranks")
        where = f"rolemesh, {backend}, an FSDP2 group from 2 ranks to 1 and back"
        report.row(f"{where}: until it runs", "s", [resize.seconds for resize in self.resizes])
        report.row(f"{where}: all are held at one step, part of it", "s", [resize.paused_s for resize in self.resizes])
        restarted = [float(len(resize.restarted)) for resize in self.resizes]
        report.claim(f"{where}: ranks of other roles restarted", restarted, at_most=0, unit="ranks")
        if self.drains:
            self._tell_drains(report, f"rolemesh, {backend}, a node that is drained, with 2 ranks")

    def _tell_drains(self, report: Report, where: str) -> None:
        report.row(f"{where}: until they step elsewhere", "s", [drain.seconds for drain in self.drains])
        report.row(f"{where}: nobody steps, part of it", "s", [drain.paused_s for drain in self.drains])
        lost = [float(drain.lost) for drain in self.drains]
        restarted = [float(len(drain.restarted)) for drain in self.drains]
        report.claim(f"{where}: steps lost", lost, at_most=0, unit="steps")
        report.claim(f"{where}: ranks of other nodes restarted", restarted, at_most=0, unit="ranks")


def _tell_bare(report: Report, bare: dict[str, list[ActorKill]]) -> None:
    for name, kills in bare.items():
        where = "bare Ray actor" + (" that imports torch" if name == "heavy" else "")
        report.row(f"{where}: until its next step", "s", [kill.seconds for kill in kills])
        if name == "heavy":
            report.row(f"{where}: its own set-up, part of it", "s", [kill.load_s for kill in kills])
        report.row(f"{where}: steps whose state is lost", "steps", [float(kill.lost_steps) for kill in kills])


def _tell_dlrover(report: Report, theirs: dict[str, list[dict[str, Any]]]) -> None:
    for kind, what in DLROVER_KINDS.items():
        again = [one["seconds"] for one in theirs[kind] if one["seconds"]]
        if again:
            report.row(f"DLRover, {what}: until it is called again", "s", again)
        if len(again) < len(theirs[kind]):
            report.notes.append(f"DLRover, {what}: {len(theirs[kind]) - len(again)} times not within a minute")
        report.row(f"DLRover, {what}: restarted, of 4", "ranks", [float(one["restarted"]) for one in theirs[kind]])
    lost = [float(one["restarted"]) for one in theirs["master"]]
    report.row("DLRover, the master: workers dead or restarted after 10 s, of 4", "ranks", lost)
    said = ", ".join(sorted({one["stage"] for one in theirs["master"]}))
    report.notes.append(f"DLRover's master, 10 s after its SIGKILL, says: {said}")


def bare_kills(address: str, kills: int) -> dict[str, list[ActorKill]]:
    """Kills of bare actors, by name; see ``actor_restarts.py``."""
    answer = _answer([sys.executable, "-m", "benchmarks.actor_restarts", address, str(kills)], ROOT)
    return {name: [ActorKill(*one) for one in found] for name, found in answer.items()}


def dlrover_kill(python: str, address: str, kind: str) -> dict[str, Any]:
    """One kill in a DLRover job, in DLRover's own environment; see ``dlrover_kills.py``."""
    script = Path(__file__).parent / "dlrover_kills.py"
    return _answer([python, str(script), address, kind], script.parent)


def _answer(command: Sequence[str], path: Path) -> dict[str, Any]:
    environ = {**os.environ, "PYTHONPATH": str(path), "DLROVER_EVENT_ENABLE": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=400, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise BenchmarkError(
            f"{command[1:]} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _less(seconds: Sequence[float], load: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(seconds, load, strict=True)]
