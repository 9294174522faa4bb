"""The duration of a step with one rank more or less: what the model predicts, beside what is then measured."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.report import Report
from benchmarks.running import JOBS, BenchmarkError, run_job
from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.run import RunFacts
from rolemesh_recorder.lines import Stretch
from rolemesh_view.predictions import load_of, predicted

STEPS, WARM = 70, 20
"""Steps of a job, and those of them that do not count: edges are empty."""
WITHIN = 0.10


class Case(NamedTuple):
    """Roles with their ms per step and number of ranks, and then one rank more or less of a role."""

    what: str
    flow: str
    roles: dict[str, tuple[float, int]]
    role: str
    change: int
    params: tuple[str, ...] = ()


CASES = (
    Case("slow first role, 2 → 3 ranks", "chain", {"a": (240, 2), "b": (30, 1), "c": (50, 1)}, "a", 1),
    Case("slow middle role, 1 → 2", "chain", {"a": (60, 1), "b": (150, 1), "c": (60, 1)}, "b", 1),
    Case("slow middle role, 1 → 2, then the last is slowest", "chain",
         {"a": (40, 1), "b": (150, 1), "c": (120, 1)}, "b", 1),
    Case("slow last role, 3 → 2", "chain", {"a": (60, 1), "b": (60, 1), "c": (300, 3)}, "c", -1),
    Case("a role that has time to spare, 2 → 1", "chain", {"a": (40, 1), "b": (120, 2), "c": (100, 1)}, "b", -1),
    Case("two roles beside each other, 2 → 3 of the slower one", "fork",
         {"a": (30, 1), "b": (240, 2), "c": (30, 1), "d": (90, 1)}, "b", 1),
    Case("rows by demand, 2 → 3", "by_demand", {"a": (30, 1), "b": (240, 2), "c": (30, 1)}, "b", 1),
    Case("rows by demand, 3 → 2", "by_demand", {"a": (30, 1), "b": (240, 3), "c": (30, 1)}, "b", -1),
    Case("on policy, 2 → 3", "on_policy", {"a": (240, 2), "b": (40, 1), "c": (80, 1)}, "a", 1),
    Case("on policy, 3 → 2", "on_policy", {"a": (240, 3), "b": (40, 1), "c": (80, 1)}, "a", -1),
    Case("a loop with a lag of 1, 2 → 3", "loop", {"a": (240, 2), "b": (40, 1), "c": (80, 1)}, "a", 1),
    Case("a loop with a lag of 2, 1 → 2 of the trainer", "loop",
         {"a": (90, 1), "b": (30, 1), "c": (150, 1)}, "c", 1, ("params.lag=2",)),
    Case("weights of at most two steps ago, 2 → 3", "newest", {"a": (240, 2), "b": (30, 1), "c": (80, 1)}, "a", 1),
)  # fmt: skip


def measure(quick: bool) -> Report:
    """Each prediction is within 10 % of what is then measured."""
    report = Report("predictions", "Seconds per step with one rank more or less: prediction and measurement", quick)
    cases, rounds = (CASES[:2], 1) if quick else (CASES, 2)
    report.settings = {"steps": STEPS, "not counted": WARM, "within": f"{WITHIN:.0%}"}
    for case in cases:
        befores, expected, afters, off = [], [], [], []
        for _ in range(rounds):
            before, shorter = step(case, 0)
            after, _ = step(case, case.change)
            befores.append(before)
            expected.append(before * (1 - shorter))
            afters.append(after)
            off.append(abs(expected[-1] / after - 1))
        report.row(f"{case.what}: before", "s", befores)
        report.row(f"{case.what}: predicted", "s", expected)
        report.row(f"{case.what}: measured", "s", afters)
        report.claim(f"{case.what}: prediction is off by", off, at_most=WITHIN)
    return report


def step(case: Case, change: int) -> tuple[float, float]:
    """Run the job with `change` ranks more of the case's role.

    Returns the seconds per step, and the share by which the model makes steps shorter with the case's change.
    """
    sizes = {role: ranks + change * (role == case.role) for role, (_, ranks) in case.roles.items()}
    roles = ", ".join(
        f'{role}: {{use: "predicted.py:Work", options: {{ms: {ms}}}, world_size: {sizes[role]}, '
        "resources: {cpu: 0.1}}"
        for role, (ms, _) in case.roles.items()
    )
    given = (f"steps={STEPS}", f"flow=predicted.py:{case.flow}", f"roles={{{roles}}}", *case.params)
    with run_job(JOBS / "predicted.yaml", *given) as run_dir:
        facts = RunFacts(run_dir)
        flow = facts.flow()
        began = {
            line.step: line.t
            for line in facts.lines(RankRef("c", 0))
            if isinstance(line, Stretch) and line.phase == "computing"
        }
        since, until = began[WARM], began[STEPS - 1]
        assert flow is not None, "the recorder has written the flow"
        load = load_of(flow, facts.uses(since, until), sizes)
        shorter = predicted(load, {case.role: sizes[case.role] + case.change}) if not change else 0.0
        if shorter is None:
            raise BenchmarkError(f"{case.what}: the work of roles does not explain the time of a step: {load}")
        return (until - since) / 1e6 / (STEPS - 1 - WARM), shorter
