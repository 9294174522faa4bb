"""The minutes of a test run: a pytest plugin that records them, and the table that CI prints at the end.

``pytest -p tests.minutes --minutes FILE`` appends the times of a run of pytest to FILE, as a line of JSON.
``python -m tests.minutes FILE [--budget MINUTES]`` prints the table of all runs in FILE, and fails above the budget.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

__all__ = ["Run", "over_budget", "table"]

FOLDERS, FILES, TESTS = 40, 15, 25
"""How many of each the table shows, the longest first."""
SHOWN_S = 1.0
"""Minimum seconds of an entry with a line of its own. The table only counts shorter ones."""


class Run(NamedTuple):
    """One run of pytest. `seconds` by ``node id [phase]``, of all its processes; `load` is the load average of a
    minute, the least and the most that was seen while it ran."""

    wall_s: float
    seconds: dict[str, float]
    load: tuple[float, float]
    cores: int


class Minutes:
    """Notes how long each test took, with its set-up and tear-down, in whichever process it ran, and names one that
    fails at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._loads = [os.getloadavg()[0]]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phase = "" if report.when == "call" else f" [{report.when}]"
        self._seconds[report.nodeid + phase] = report.duration
        self._loads.append(os.getloadavg()[0])
        if report.failed:
            print(f"\nfailed: {report.nodeid}{phase}", file=sys.stderr, flush=True)

    def pytest_sessionfinish(self) -> None:
        load = (min(self._loads), max(self._loads))
        run = Run(time.monotonic() - self._began, self._seconds, load, os.cpu_count() or 1)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(run._asdict()) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=Path, metavar="FILE", help="append where the minutes went to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("minutes")
    if path is not None and not hasattr(config, "workerinput"):  # pytest-xdist's workers report to their controller
        config.pluginmanager.register(Minutes(path))


def folder_of(nodeid: str) -> str:
    """Return the folder that a test counts for, as ``tests/unit/engine/agent`` or ``plugins/workloads/fsdp``."""
    path = nodeid.partition("::")[0].split("/")
    return "/".join(path[:3] if path[0] == "plugins" else path[:-1][:4] if path[1] == "unit" else path[:2])


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def summed(seconds: dict[str, float], key: Any) -> Counter[str]:
    """Seconds by `key` of a node id."""
    sums: Counter[str] = Counter()
    for nodeid, took in seconds.items():
        sums[key(nodeid)] += took  # type: ignore[assignment]
    return sums


def longest(title: str, sums: Counter[str], most: int) -> Iterator[str]:
    """The lines of one part of the table."""
    shown = [(name, took) for name, took in sums.most_common(most) if took >= SHOWN_S]
    yield f"{title} ({len(shown)} of {len(sums)})"
    yield from (f"{took / 60:7.1f} min  {name}" if took >= 60 else f"{took:7.1f} s    {name}" for name, took in shown)
    yield ""


def table(runs: Iterable[Run]) -> str:
    """Return the table of the minutes: by folder, by file, and the longest tests, set-ups and tear-downs."""
    runs = list(runs)
    seconds = {nodeid: took for run in runs for nodeid, took in run.seconds.items()}
    lines = [
        *longest("minutes by folder, of all test processes together", summed(seconds, folder_of), FOLDERS),
        *longest("by file", summed(seconds, file_of), FILES),
        *longest("the longest tests; a set-up that is shared counts for the first", Counter(seconds), TESTS),  # type: ignore[arg-type]
        account(runs),
    ]
    return "\n".join(lines)


def account(runs: list[Run]) -> str:
    """How long all took, and beside how much other work."""
    wall, processes = sum(run.wall_s for run in runs), sum(took for run in runs for took in run.seconds.values())
    low, high = min(run.load[0] for run in runs), max(run.load[1] for run in runs)
    return (
        f"{wall / 60:.1f} minutes, in which tests ran for {processes / 60:.1f}; "
        f"load average {low:.1f} to {high:.1f} on {runs[0].cores} cores"
    )


def over_budget(runs: list[Run], minutes: float) -> str:
    """Return the error, or "" if there is none."""
    took = sum(run.wall_s for run in runs) / 60
    if took <= minutes:
        return ""
    return (
        f"error: the tests took {took:.1f} minutes, and may take {minutes:g}\n"
        f"  {account(runs)}: a load average far above the number of cores means that other work took the time\n"
        "  else: let tests share what is costly, or give what repeats a behaviour the marker `soak` (CONTRIBUTING.md)"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.minutes", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--budget", type=float, metavar="MINUTES")
    asked = parser.parse_args(arguments)
    runs = [
        Run(**json.loads(line) | {"load": tuple(json.loads(line)["load"])})
        for line in asked.file.read_text().splitlines()
    ]
    print(table(runs))
    told = over_budget(runs, asked.budget) if asked.budget else ""
    if told:
        print(told, file=sys.stderr)
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
