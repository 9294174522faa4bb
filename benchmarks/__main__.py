"""``python -m benchmarks [NAME…] [--quick] [--json]``: run benchmarks, print their tables, write their JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.bytecode import write_bytecode
from benchmarks.report import RESULTS, Report
from benchmarks.running import ROOT

NAMES = (
    "chain",
    "chain_large",
    "calls",
    "sample",
    "controller",
    "weights",
    "start_ranks",
    "start_many",
    "submit",
    "snapshot",
    "failover",
    "goodput",
    "planning",
    "balanced",
    "imports",
    "grpo",
    "launch",
    "flash",
    "pretrain",
    "deepspeed_step",
    "gateway",
    "long_tails",
    "trace",
    "recording",
    "predictions",
)
UNPUBLISHED = ("embeddings", "embeddings_large", "staleness", "invariance", "grpo_trl", "pages", "weights_nodes")
"""Benchmarks without committed results: they run if they are named."""


def main(arguments: list[str] | None = None) -> int:
    """Run the named benchmarks, or all. 0 if all could be measured, whether or not their claims hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: shows that it works, no more")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON instead of tables")
    parser.add_argument("--results", type=Path, help="folder for the JSON (default: benchmarks/results; none if quick)")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - {*NAMES, *UNPUBLISHED}:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES + UNPUBLISHED)}")
    folder = given.results or (None if given.quick else RESULTS)
    console = Console(stderr=given.json)
    write_bytecode(ROOT, sys.executable)
    reports: list[Report] = []
    for name in given.names or NAMES:
        console.print(f"measuring {name} …", style="dim")
        report: Report = importlib.import_module(f"benchmarks.{name}").measure(given.quick)
        report.finish()
        if folder is not None:
            report.save(folder)
        report.show(console)
        reports.append(report)
    if given.json:
        json.dump([asdict(report) for report in reports], sys.stdout, indent=1, ensure_ascii=False)
        print()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started ends with it
    sys.exit(main())
