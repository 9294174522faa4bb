"""A script under `rolemesh launch` and torchrun: the start, and SIGKILL of a worker → the group's next step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, BenchmarkError

__all__ = ["COMMANDS", "Script", "measure"]

SCRIPT = JOBS / "launched.py"
BIN = Path(sys.executable).parent
COMMANDS = {
    "rolemesh launch": (str(BIN / "rolemesh"), "launch"),
    "torchrun": (sys.executable, "-m", "torch.distributed.run"),
}
WORKERS = 2
STEPS = 10
"""Number of steps of every worker before the benchmark kills one of them."""
LIMIT_S = 120.0
T = TypeVar("T")


def measure(quick: bool) -> Report:
    """The group steps again in at most a third of torchrun's time."""
    report = Report("launch", "a script under rolemesh launch and torchrun", quick)
    rounds, kills = (1, 1) if quick else (5, 3)
    starts: dict[str, list[float]] = {name: [] for name in COMMANDS}
    again: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(rounds):
        for name in sorted(COMMANDS, reverse=bool(number % 2)):
            with Script(COMMANDS[name], kills, SCRIPT) as script:
                starts[name].append(script.started_s())
                again[name] += [script.kill(life, victim=life % WORKERS) for life in range(kills)]
    for name in COMMANDS:
        report.row(f"{name}: the command → every worker has done a step", "s", starts[name])
    for name in COMMANDS:
        report.row(f"{name}: SIGKILL of a worker → every worker has done a step", "s", again[name])
    report.claim(
        "SIGKILL → the group's next step: rolemesh launch / torchrun",
        ratios(again["rolemesh launch"], again["torchrun"]),
        at_most=round(1 / 3, 3),
    )
    report.settings = {"rounds": rounds, "kills in a round": kills, "workers": WORKERS}
    report.notes.append("the script keeps nothing: both start it again from its first line")
    report.notes.append(
        "torchrun runs with --standalone and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, its best case: without them torch "
        "2.13 hands the store of dead workers on to new ones, where gloo finds their addresses, fails or waits for ever"
    )
    return report


class Script:
    """A command that runs a script which notes its steps, and restarts it `restarts` times. Raises `BenchmarkError`."""

    def __init__(self, command: Sequence[str], restarts: int, script: Path, *arguments: str) -> None:
        self._command = (
            *command, "--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", str(restarts), str(script),
        )  # fmt: skip
        self._arguments = arguments

    def __enter__(self) -> Script:
        self._temporary = tempfile.TemporaryDirectory(prefix="rolemesh-bench-")
        self.folder = Path(self._temporary.name)
        (self.folder / "steps").mkdir()
        self._began = time.monotonic()
        with (self.folder / "said").open("wb") as said:
            self._process = subprocess.Popen(
                [*self._command, str(self.folder / "steps"), *self._arguments],
                cwd=self.folder, stdout=said, stderr=said,
                env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            )  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        (self.folder / "steps" / "stop").touch()
        try:
            self._process.wait(0 if kind else LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        if not kind and self._process.returncode:
            raise BenchmarkError(f"{self._command} ended with {self._process.returncode}:\n{self._said()}")
        self._temporary.cleanup()

    def started_s(self) -> float:
        """From the command to the first step of its last worker."""
        return self._first(0) - self._began

    def kill(self, life: int, victim: int) -> float:
        """SIGKILL worker number `victim` of life number `life`; seconds until all of the next have done a step."""
        pid = self._until(lambda: self._stepping(life)).get(victim)
        assert pid is not None
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return self._first(life + 1) - killed

    def _stepping(self, life: int) -> dict[int, int] | None:
        """The workers' pids, by rank, when all have done `STEPS`."""
        found = self._workers(life)
        ready = len(found) == WORKERS and all(len(steps) >= STEPS for _, steps in found.values())
        return {rank: pid for rank, (pid, _) in found.items()} if ready else None

    def _first(self, life: int) -> float:
        """When the last worker has done its first step."""

        def first() -> float | None:
            found = self._workers(life)
            ready = len(found) == WORKERS and all(steps for _, steps in found.values())
            return max(steps[0] for _, steps in found.values()) if ready else None

        return self._until(first)

    def _workers(self, life: int) -> dict[int, tuple[int, list[float]]]:
        """Rank → its pid, and the times of its steps."""
        found = {}
        for path in (self.folder / "steps").glob(f"{life}-*-*"):
            _, rank, pid = path.name.split("-")
            lines = path.read_text("ascii").split("\n")[:-1]
            found[int(rank)] = (int(pid), [float(line) for line in lines])
        return found

    def _until(self, condition: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + LIMIT_S
        while (found := condition()) is None:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise BenchmarkError(f"{self._command}: what was waited for has not come\n{self._said()}")
            time.sleep(0.005)
        return found

    def _said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")[-4000:]
