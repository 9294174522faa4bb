"""A chain of three roles that hand 1 KB on: ours, Ray's ref chain, Ray's Compiled Graphs, one plain process."""

from __future__ import annotations

from benchmarks.chains import RayChains, bare_steps, our_steps
from benchmarks.report import Report, ratios

NBYTES = 1024
CREDITS = 256
METRICS_EVERY = 1000
LADDER = "failover=[{use: process},{use: job}]"


def measure(quick: bool) -> Report:
    """At least 25 × the ref chain and 8 × Compiled Graphs; by default 20 × the ref chain, with a ladder 12 ×."""
    report = Report("chain", "steps/s of a 3-stage chain of 1 KB", quick)
    rounds, steps, ray_steps, bare = (1, 2000, 200, 20_000) if quick else (5, 50_000, 2000, 500_000)
    tuned = (f"edges.credits={CREDITS}", f"metrics.every={METRICS_EVERY}", f"engine.options.grant={steps}")
    found: dict[str, list[float]] = {
        name: [] for name in ("tuned", "default", "ladder", "refs", "sync", "graph", "bare")
    }
    with RayChains(NBYTES) as ray_chains:
        window = ray_chains.best_window((16, 64, 256), ray_steps // 4)
        for _ in range(rounds):
            found["tuned"].append(our_steps(NBYTES, steps, *tuned))
            found["refs"].append(ray_chains.ref_steps(ray_steps, window))
            found["sync"].append(ray_chains.ref_steps(ray_steps // 4, 1))
            found["graph"].append(ray_chains.graph_steps(ray_steps))
            found["default"].append(our_steps(NBYTES, steps))
            found["ladder"].append(our_steps(NBYTES, steps, LADDER))
            found["bare"].append(bare_steps(NBYTES, bare))
    report.settings = {
        "bytes": NBYTES, "our steps": steps, "edges.credits": CREDITS, "metrics.every": METRICS_EVERY,
        "grant": steps, "Ray's steps": ray_steps, "ref chains in flight": window,
        "Compiled Graphs in flight": RayChains.IN_FLIGHT,
    }  # fmt: skip
    report.row(f"rolemesh, credits {CREDITS}, metrics every {METRICS_EVERY}", "steps/s", found["tuned"])
    report.row("rolemesh, default settings", "steps/s", found["default"])
    report.row("rolemesh, default settings, with a ladder", "steps/s", found["ladder"])
    report.row(f"Ray, refs passed on, {window} in flight", "steps/s", found["refs"])
    report.row("Ray, refs passed on, one at a time", "steps/s", found["sync"])
    report.row(f"Ray, Compiled Graph, {RayChains.IN_FLIGHT} in flight", "steps/s", found["graph"])
    report.row("one process, three function calls", "steps/s", found["bare"])
    report.claim("rolemesh / Ray's ref chain", ratios(found["tuned"], found["refs"]), at_least=25)
    report.claim("rolemesh / Compiled Graph", ratios(found["tuned"], found["graph"]), at_least=8)
    report.claim("default settings: rolemesh / Ray's ref chain", ratios(found["default"], found["refs"]), at_least=20)
    report.claim("with a ladder: rolemesh / Ray's ref chain", ratios(found["ladder"], found["refs"]), at_least=12)
    report.notes.append(
        "a Compiled Graph is compiled for each of its turns: its actors keep both cores busy between executions"
    )
    report.notes.append(
        "by default, rolemesh / ref chain is {:.3g} × and / Compiled Graph {:.3g} × (medians)".format(
            *(_middle(ratios(found["default"], found[other])) for other in ("refs", "graph"))
        )
    )
    return report


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
