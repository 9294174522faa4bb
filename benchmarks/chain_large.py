"""The same chain with values of 1 MB and 50 MB, which travel in shared memory on both sides."""

from __future__ import annotations

from benchmarks.chains import RayChains, bare_steps, our_steps
from benchmarks.report import Report, ratios

MB = 1_000_000


def measure(quick: bool) -> Report:
    """≥ 30 × the ref chain at 1 MB, ≥ 4 × at 50 MB."""
    report = Report("chain_large", "steps/s of a 3-stage chain of 1 MB and 50 MB", quick)
    rounds = 1 if quick else 3
    windows = {1: (8, 32, 64), 50: (2, 4, 8)}
    # A new slot of 50 MB costs as much as 20 steps, and a rank may make its fourth one at any step: measure many steps.
    sizes = {1: (500, 50), 50: (30, 10)} if quick else {1: (20_000, 500), 50: (2_000, 60)}
    bounds = {1: 30, 50: 4}
    for size, (steps, ray_steps) in sizes.items():
        nbytes = size * MB
        credits = max(windows[size], key=lambda credits: our_steps(nbytes, steps // 2, *tuned(credits, steps)))
        found: dict[str, list[float]] = {name: [] for name in ("ours", "default", "refs", "graph", "bare")}
        with RayChains(nbytes, in_flight=4) as ray_chains:
            window = ray_chains.best_window((4, 16, 64) if size == 1 else windows[size], max(10, ray_steps // 5))
            for _ in range(rounds):
                found["ours"].append(our_steps(nbytes, steps, *tuned(credits, steps)))
                found["refs"].append(ray_chains.ref_steps(ray_steps, window))
                found["graph"].append(ray_chains.graph_steps(ray_steps))
                found["default"].append(our_steps(nbytes, max(20, steps // 2)))
                found["bare"].append(bare_steps(nbytes, 10_000))
        report.settings[f"{size} MB"] = {
            "our steps": steps, "edges.credits": credits, "metrics.every": 100, "grant": steps,
            "Ray's steps": ray_steps, "ref chains in flight": window, "Compiled Graphs in flight": 4,
        }  # fmt: skip
        report.row(f"{size} MB: rolemesh, credits {credits}, metrics every 100", "steps/s", found["ours"])
        report.row(f"{size} MB: rolemesh, default settings", "steps/s", found["default"])
        report.row(f"{size} MB: Ray, refs passed on, {window} in flight", "steps/s", found["refs"])
        report.row(f"{size} MB: Ray, Compiled Graph, 4 in flight", "steps/s", found["graph"])
        report.row(f"{size} MB: one process, nothing copied", "steps/s", found["bare"])
        what = f"{size} MB: rolemesh / Ray's ref chain"
        report.claim(what, ratios(found["ours"], found["refs"]), at_least=bounds[size])
        what = f"{size} MB: rolemesh / Compiled Graph"
        report.claim(what, ratios(found["ours"], found["graph"]), at_least=1)
    report.notes.append(
        "the relay hands on the array that it got, so each value is copied once: into a slot of the source's"
    )
    return report


def tuned(credits: int, steps: int) -> tuple[str, ...]:
    """Overrides of the job for throughput."""
    return (f"edges.credits={credits}", "metrics.every=100", f"engine.options.grant={steps}")
