"""A script's state kept by `track`, torch.save, DCP and DLRover: the pause of a save, and having it back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.launch import COMMANDS
from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, BenchmarkError
from benchmarks.submit import DLROVER_ENV

SCRIPT = JOBS / "flashed.py"
LIMIT_S = 180.0
WAYS = {
    "track": "rolemesh launch, track",
    "torch": "torchrun, torch.save and fsync",
    "dcp": "torchrun, DCP async_save, staging buffers kept",
    "dlrover": "dlrover-run, DLRover's flash checkpoint",
}


def measure(quick: bool) -> Report:
    """The pause is shorter than everybody else's, and so is the way from a SIGKILL to the next step."""
    report = Report("flash", "a script's state of 200 MB, saved after each step", quick)
    ways = dict(WAYS)
    dlrover = os.environ.get(DLROVER_ENV)
    if quick or not dlrover:
        del ways["dlrover"]
        report.skipped.append(
            f"DLRover: {DLROVER_ENV} is not set; see benchmarks/README.md for the Python that it should point to"
        )
    pauses: dict[str, list[float]] = {how: [] for how in ways}
    restores: dict[str, list[float]] = {how: [] for how in ways}
    again: dict[str, list[float]] = {how: [] for how in ways}
    for number in range(1 if quick else 3):
        for how in sorted(ways, reverse=bool(number % 2)):
            try:
                found = saved_and_killed(how, dlrover or "")
            except BenchmarkError as error:
                if how != "dlrover":
                    raise
                del ways["dlrover"]
                report.skipped.append(f"DLRover: dlrover-run does not run here: {str(error).strip().splitlines()[-1]}")
                continue
            pauses[how] += [1e3 * seconds for seconds in found["pauses"]]
            restores[how].append(1e3 * found["restored"])
            again[how].append(found["again"])
    for how, what in ways.items():
        report.row(f"pause of a save: {what}", "ms", pauses[how])
    for how, what in ways.items():
        report.row(f"the script has its state back: {what}", "ms", restores[how])
    for how, what in ways.items():
        report.row(f"SIGKILL → a step from the saved state: {what}", "s", again[how])
    for how, what in list(ways.items())[1:]:
        report.claim(f"pause: {what} / track", ratios(pauses[how], pauses["track"]), at_least=1)
        report.claim(f"SIGKILL → a step: {what} / track", ratios(again[how], again["track"]), at_least=1)
    report.settings = {"bytes": 200 << 20, "workers": 1, "saves that count": len(pauses["track"])}
    report.notes.append(
        "one worker, on CPU, so DCP has no pinned memory to stage through; each waits until an asynchronous save is "
        "written before the next step; files that are read are in the page cache"
    )
    return report


def saved_and_killed(how: str, dlrover: str) -> dict[str, Any]:
    """One run: saves, SIGKILL, one step from the newest save. Raises `BenchmarkError`."""
    command = {
        "track": (*COMMANDS["rolemesh launch"], "--set", "engine.options.snapshots.every=0s"),
        "dlrover": (dlrover, "-m", "dlrover.trainer.torch.elastic_run", "--standalone"),
    }.get(how, (*COMMANDS["torchrun"], "--standalone"))
    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as name:
        folder = Path(name)
        environ = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "DLROVER_EVENT_ENABLE": "false"}
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(
                [*command, "--nproc_per_node", "1", "--max_restarts", "1", str(SCRIPT), name, how],
                cwd=folder, stdout=said, stderr=said, env=environ,
            )  # fmt: skip
        try:
            first = _told(folder / "first", process)
            os.kill(first["pid"], signal.SIGKILL)
            killed = time.monotonic()
            second = _told(folder / "second", process)
            if process.wait(LIMIT_S):
                raise BenchmarkError(_said(folder))
        finally:
            process.terminate()
            process.wait()
    return {"pauses": first["pauses"], "restored": second["restored"], "again": second["stepped"] - killed}


def _told(path: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchmarkError(f"{path.name} has not come:\n{_said(path.parent)}")
        time.sleep(0.01)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _said(folder: Path) -> str:
    return (folder / "said").read_text(errors="replace")[-4000:]
