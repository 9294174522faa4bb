"""Rows shared out by demand against fixed parts: four ranks of which one is slow, and rows of very different length."""

from __future__ import annotations

import numpy as np

from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, run_job, times

RANKS, ROWS, WARM, MEAN_S = 4, 32, 10, 0.016
SLOW, SIGMA = 5.0, 1.5
AHEAD = 2
"""Values that ranks may be ahead of the sink: as for large values, so that nobody is long before the others."""
FEW, LAG, FAR = {8: 1.5, 4: 1.8}, 8, 10
"""Rows a step where the sink takes what is finished first, and what that gains over fixed parts at least; at most how
many steps old, and how far ranks may be ahead: a step that waits for its longest row loses most where it has few."""


def measure(quick: bool) -> Report:
    """With one rank 5 times slower ≥ 0.9 of the ideal."""
    report = Report("balanced", f"rows/s of {RANKS} ranks, {MEAN_S * 1e3:g} ms a row on average", quick)
    rounds, steps = (1, 30) if quick else (3, 80)
    slow, spread = (f"roles.work.options.kwargs.slow={SLOW}",), (f"roles.work.options.kwargs.sigma={SIGMA}",)
    names = ("slow", "slow parts", "spread", "spread parts")
    found: dict[str, list[float]] = {name: [] for name in names}
    found |= {f"{name} {few}": [] for few in FEW for name in ("first", "parts", "parts ahead")}
    for _ in range(rounds):
        for name, extra in {"slow": slow, "spread": spread}.items():
            found[name].append(rows_a_second(steps, "shared", *extra))
            found[f"{name} parts"].append(rows_a_second(steps // 3 if name == "slow" else steps, "parts", *extra))
        for few in FEW:
            longer, some = steps * ROWS // few, (*spread, f"roles.source.options.kwargs.rows={few}")
            found[f"first {few}"].append(
                rows_a_second(longer, "shared", f"params.lag={LAG}", *some, rows=few, ahead=FAR)
            )
            found[f"parts {few}"].append(rows_a_second(longer, "parts", *some, rows=few))
            found[f"parts ahead {few}"].append(rows_a_second(longer, "parts", *some, rows=few, ahead=FAR))
    report.settings = {
        "ranks": RANKS, "rows a step": ROWS, "steps": steps, "edges.credits": AHEAD, "slow rank": f"{SLOW:g} ×",
        "sigma": SIGMA,
    }  # fmt: skip
    ideal = {"slow": ((RANKS - 1) + 1 / SLOW) / MEAN_S, "spread": spread_ideal(steps)}
    for name, what in (("slow", f"one rank {SLOW:g} times slower"), ("spread", f"log-normal rows, sigma {SIGMA:g}")):
        report.row(f"{what}: Balanced(rows=1)", "rows/s", found[name])
        report.row(f"{what}: Split()", "rows/s", found[f"{name} parts"])
        report.row(f"{what}: ideal, nobody ever waits", "rows/s", [ideal[name]] * rounds)
    report.claim("one slow rank: Balanced / ideal", [x / ideal["slow"] for x in found["slow"]], at_least=0.9)
    report.claim("one slow rank: Balanced / Split", ratios(found["slow"], found["slow parts"]), at_least=2)
    report.claim("log-normal: Balanced / Split", ratios(found["spread"], found["spread parts"]), at_least=1.15)
    for few, gain in FEW.items():
        what = f"log-normal rows, {few} a step"
        first = found[f"first {few}"]
        report.row(f"{what}: Balanced(rows=1), lag=AtMost({LAG}): what is finished first", "rows/s", first)
        report.row(f"{what}: Split()", "rows/s", found[f"parts {few}"])
        report.row(f"{what}: Split(), {FAR} steps ahead", "rows/s", found[f"parts ahead {few}"])
        report.claim(f"{what}: first / Split", ratios(first, found[f"parts {few}"]), at_least=gain)
    report.notes.append(
        f"log-normal: whoever takes a step's rows in order waits for the longest; the schedule itself allows no more "
        f"than {best(steps):.3g} × the fixed parts here"
    )
    return report


def rows_a_second(steps: int, operator: str, *overrides: str, rows: int = ROWS, ahead: int = AHEAD) -> float:
    """Between two steps of the sink, of `rows` each."""
    settings = (f"steps={steps}", f"params.operator={operator}", f"edges.credits={ahead}", *overrides)
    with run_job(JOBS / "balanced.yaml", *settings) as run_dir:
        noted = times(run_dir)["sink-0"]
    return float(noted["steps"] * rows / noted["seconds"])


def durations(steps: int) -> np.ndarray:
    """Seconds of each row, (steps, rows), as `Naps` sleeps with the job's seed 0."""
    from rolemesh import RankContext

    ctx = RankContext(seed=0)  # type: ignore[arg-type]
    noise = np.array([ctx.rng(x).standard_normal() for x in range(steps * ROWS)]).reshape(steps, ROWS)
    return MEAN_S / np.exp(SIGMA**2 / 2) * np.exp(SIGMA * noise)


def spread_ideal(steps: int) -> float:
    """Rows a second if the ranks were always busy, of the steps that are measured."""
    return float((steps - 1 - WARM) * ROWS * RANKS / durations(steps)[WARM + 1 :].sum())


def best(steps: int) -> float:
    """Return the theoretical gain of list scheduling over fixed parts, with ranks at most `AHEAD` steps apart."""
    naps = durations(steps)
    return _makespan(naps.reshape(steps, RANKS, -1).sum(2), fixed=True) / _makespan(naps, fixed=False)


def _makespan(naps: np.ndarray, *, fixed: bool) -> float:
    free, done = np.zeros(RANKS), [0.0]
    for step, row in enumerate(naps):
        gate = done[max(0, step - AHEAD + 1)]
        end = done[-1]
        for index, nap in enumerate(row):
            rank = index if fixed else int(free.argmin())
            free[rank] = max(free[rank], gate) + nap
            end = max(end, free[rank])
        done.append(float(end))
    return done[-1]
