"""Compare this checkout with another one: ``python -m benchmarks.against FOLDER [NAME…] [--rounds 5] [--json FILE]``.

FOLDER is another checkout of this repository with its own ``.venv`` (``git worktree add``, ``make install``). Each
measurement runs in turns, once in this checkout and once in the other one, so both meet the same load. Even rounds
begin here and odd rounds begin there. The table shows medians, and the median of the rounds' ratios: above 1 this
checkout is slower. The command ends with 1 if a ratio is above 1.03.

Each sample is a process of its own, with the checkout's Python, in the checkout's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SLOWER = 1.03
"""The largest ratio of the two times that passes."""


def chain(settings: str) -> dict[str, float]:
    """Microseconds of a step of a chain of three roles with 1 KB.

    A sample of 30,000 steps takes one second, and one snapshot more or less in it changes its figure by a third. One of
    200,000 steps differs by a twentieth from the next.
    """
    from benchmarks.chains import our_steps

    steps = 200_000
    overrides = {
        "tuned": ("edges.credits=256", "metrics.every=1000", f"{_engine_key('grant')}={steps}"),
        "default": (),
        "ladder": ("failover=[{use: process}, {use: job}]",),
    }
    return {"µs/step": 1e6 / our_steps(1024, steps, *overrides[settings])}


def chain_large(megabytes: int, steps: int) -> dict[str, float]:
    """Milliseconds of a step of the same chain with large values.

    To make a slot of 50 MB costs as much as 20 steps, and a rank may make its fourth one at any step. A sample of 200
    steps therefore differs by a tenth from the next; one of 2,000 steps differs by a hundredth.
    """
    from benchmarks.chains import our_steps

    return {"ms/step": 1e3 / our_steps(megabytes * 1_000_000, steps)}


def controller() -> dict[str, float]:
    """Microseconds of the master's processor time per step, with four ranks."""
    from benchmarks.controller import master_cpu

    return {"master's µs/step": 1e6 * master_cpu(4, 1200)[0]}


def failover() -> dict[str, float]:
    """Seconds from SIGKILL until ranks step again and the master commits, on the local backend."""
    from benchmarks.failover import Ours

    ours = Ours()
    ours.disturb(3, "--backend", "local")
    found = {f"{role}: s": median(kill.seconds for kill in kills) for role, kills in ours.ranks.items()}
    return found | {"master: s": median(kill.committed_s for kill in ours.masters)}


def snapshot() -> dict[str, float]:
    """Milliseconds of a snapshot of 1 GB into shared memory, and of memcpy of the same bytes."""
    from benchmarks.snapshot import measure

    report = measure(False)
    wanted = {"pause: snapshot into shared memory": "ms", "restore into tensors: from shared memory": "restore: ms"}
    return {wanted[row.what]: row.median for row in report.rows if row.what in wanted}


def submit() -> dict[str, float]:
    """Seconds from the driver's call to the operators of four ranks, on a Ray that is up."""
    from benchmarks.submit import our_job, ray_head

    with ray_head(sys.executable) as address:
        return {"s": our_job(address, 4, 0.0)}


def start_many() -> dict[str, float]:
    """Seconds of the master's processor time to start 10,000 ranks, and until a lost one is back."""
    from benchmarks.start_many import many

    found = many(1)
    return {"start: s": found["start_cpu_s"], "lost: s": found["lost_cpu_s"]}


SAMPLES: dict[str, Callable[[], dict[str, float]]] = {
    "chain-tuned": lambda: chain("tuned"),
    "chain-default": lambda: chain("default"),
    "chain-ladder": lambda: chain("ladder"),
    "chain_large-1MB": lambda: chain_large(1, 10_000),
    "chain_large-50MB": lambda: chain_large(50, 2_000),
    "controller": controller,
    "failover": failover,
    "snapshot": snapshot,
    "submit": submit,
    "start_many": start_many,
}


def _engine_key(key: str) -> str:
    """How the checkout spells an option of its engine: before `engine.options` it was a key of the job file."""
    return f"engine.options.{key}" if find_spec("rolemesh_durable.options") else key


def sample(name: str, checkout: Path) -> dict[str, float]:
    """One measurement in a process of `checkout`. Raises `SystemExit` with what it printed if it fails."""
    python = checkout / ".venv" / "bin" / "python"
    environ = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, __file__, "--sample", name], cwd=checkout, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} failed in {checkout}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(other: Path, names: list[str], rounds: int, kept: Path | None) -> dict[str, Any]:
    """Samples of both checkouts by measurement and quantity, round by round. Writes them to `kept` as they come."""
    from benchmarks.bytecode import write_bytecode  # a sample in an older checkout does without it

    for checkout in (HERE, other):
        write_bytecode(checkout, checkout / ".venv" / "bin" / "python")
    found: dict[str, Any] = {}
    for number in range(rounds):
        for name in names:
            both = [("here", HERE), ("other", other)]
            for side, checkout in both if number % 2 == 0 else reversed(both):
                for what, value in sample(name, checkout).items():
                    found.setdefault(f"{name}, {what}", {"here": [], "other": []})[side].append(value)
            print(f"round {number + 1}: {name}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            if kept:
                kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def show(found: dict[str, Any]) -> bool:
    """Print the table. Returns whether nothing is slower than the claim allows."""
    print(f"{'':44} {'here':>10} {'other':>10} {'ratio':>7}  min - max of the ratios")
    passes = True
    for what, sides in found.items():
        shares = [here / there for here, there in zip(sides["here"], sides["other"], strict=True)]
        passes &= median(shares) <= SLOWER
        mark = "" if median(shares) <= SLOWER else "  slower"
        here, there = median(sides["here"]), median(sides["other"])
        print(
            f"{what:44} {here:10.4g} {there:10.4g} {median(shares):7.3f}  {min(shares):.3f} - {max(shares):.3f}{mark}"
        )
    return passes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="another checkout of this repository, with its .venv")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SAMPLES)}; all if none is given")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement in each checkout")
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    parser.add_argument("--sample", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sample:
        print(json.dumps(SAMPLES[given.sample]()))
        return 0
    if given.folder is None or not (given.folder / ".venv").is_dir():
        parser.error("FOLDER must be a checkout with a .venv; run `make install` there")
    if unknown := [name for name in given.names if name not in SAMPLES]:
        parser.error(f"no measurement is called {', '.join(unknown)}; there are {', '.join(SAMPLES)}")
    found = compare(given.folder.resolve(), given.names or list(SAMPLES), given.rounds, given.json)
    return 0 if show(found) else 1


if __name__ == "__main__":
    sys.exit(main())
