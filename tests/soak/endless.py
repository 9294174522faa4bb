"""A job without an end, disturbed: ``python -m tests.soak.endless --minutes 120 --picture endless.png``.

The job reads files that grow and rotate. The run kills a process every minute, resizes the job every few minutes, and
finally lets it finish. The job must have used each record once. The run samples its resources and draws them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e.harness import Job
from tests.soak.footprint import Sample, sample

from rolemesh_durable.control.client import ControlClient, MasterGoneError
from rolemesh_durable.extensions.rehearsal.requests import InjectFault

__all__ = ["Endless", "Outcome", "drawn", "main"]

ROLES = '''
from rolemesh import Split, operator


class Work:
    """Squares, row by row."""

    @operator(rows=Split(), returns=Split())
    def square(self, rows):
        return rows | {"square": [n * n for n in rows["n"]]} if rows.rows else rows


class Sink:
    """Counts what it gets, and adds it up."""

    def __init__(self, ctx):
        self.ctx, self.state = ctx, {"rows": 0, "total": 0, "squares": 0}

    def take(self, rows):
        if rows.rows:
            self.state["rows"] += rows.rows
            self.state["total"] += sum(rows["n"])
            self.state["squares"] += sum(rows["square"])
        self.ctx.record(**self.state)

    def snapshot(self):
        return self.state

    def restore(self, state):
        self.state = dict(state)
'''
FLOW = """
from rolemesh import flow


@flow
def endless(job):
    job.sink.take(job.work.square(job.data.next()))
"""
JOB = """
name: endless
flow: endless_flow.py:endless
steps: null
plugins:
  sources: [{use: files, options: {path: "data/*.jsonl", until: _DONE, scan_s: 0.2}}]
roles:
  data: {use: source, options: {source: files, rows: 16, wait_s: 0.2}, resources: {cpu: 0.1}}
  work:
    use: function
    world_size: {min: 1, max: 3}
    options: {target: "endless_roles.py:Work"}
    resources: {cpu: 0.1}
  sink:
    use: function
    options: {target: "endless_roles.py:Sink", inputs: {rows: broadcast}}
    resources: {cpu: 0.1}
failover: [{use: process, options: {max_attempts: 1000}}, {use: job, options: {max_attempts: 1000}}]
engine: {options: {snapshots: {every: 1, persist_every: 50}}}
"""
TARGETS = ("data/0", "sink/0", "work/0", "agent:node0", "master")
SIZES = (2, 1, 3)
KEPT = 3
"""Rotated files that are left in place: as with any rotation, older ones are removed once they are in a checkpoint."""


class Writer(threading.Thread):
    """Appends a few records at a time to one of two files, which are renamed when they are long enough."""

    def __init__(self, folder: Path, per_second: float, lines: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.pause_s, self.lines = folder, 1 / per_second, lines
        self.count, self.over = 0, threading.Event()
        folder.mkdir()

    def run(self) -> None:
        rotated: list[Path] = []
        while not self.over.wait(self.pause_s):
            path = self.folder / f"{self.count % 2}.jsonl"
            with path.open("a") as file:
                file.write(json.dumps({"n": self.count}) + "\n")
            self.count += 1
            if self.count >= self.lines and self.count % self.lines < 2:
                path.rename(aged := path.with_name(f"{path.name}.{self.count:09}"))
                rotated.append(aged)
            while len(rotated) > 2 * KEPT:
                rotated.pop(0).unlink()
        (self.folder / "_DONE").touch()


class Outcome:
    """The outcome of a run: `samples` in the order of time, the number of `kills` and `resizes`, and the last
    record of the sink beside the expected one."""

    def __init__(self, samples: Sequence[Sample], kills: int, resizes: int, code: int, found: object, due: object):
        self.samples, self.kills, self.resizes = samples, kills, resizes
        self.code, self.found, self.due = code, found, due

    @property
    def exact(self) -> bool:
        """Whether the job has ended well, each record used once."""
        return self.code == 0 and self.found == self.due


class Endless:
    """The job in `folder`, disturbed for `seconds`: a kill every `kill_s`, a resize every `resize_s`."""

    def __init__(self, folder: Path, seconds: float, kill_s: float = 60.0, resize_s: float = 290.0) -> None:
        for name, content in (("endless_roles.py", ROLES), ("endless_flow.py", FLOW), ("job.yaml", JOB)):
            (folder / name).write_text(content)
        self._job = Job(folder, "endless", ("--backend", "local"))
        self._writer = Writer(folder / "data", 50.0, 3000)
        self._seconds, self._kill_s, self._resize_s = seconds, kill_s, resize_s
        self._kills = self._resizes = 0

    def run(self, every_s: float) -> Outcome:
        """From the start to the end, with a sample every `every_s`."""
        job, writer = self._job, self._writer
        with (job.folder / "console").open("w") as console:
            driver = job.start(console=console)
            try:
                writer.start()
                job.running(5)
                samples = list(self._watched(driver, every_s))
                writer.over.set()
                writer.join()
                driver.wait()
            finally:
                driver.kill()
                driver.wait()
        n = writer.count
        due = {"rows": n, "total": n * (n - 1) // 2, "squares": (n - 1) * n * (2 * n - 1) // 6}
        found = job.metrics()[-1]["records"]
        return Outcome(samples, self._kills, self._resizes, driver.returncode, found, due)

    def _watched(self, driver: subprocess.Popen[str], every_s: float) -> Iterator[Sample]:
        began = time.monotonic()
        targets, sizes = itertools.cycle(TARGETS), itertools.cycle(SIZES)
        kill_at, resize_at = began + self._kill_s, began + self._resize_s
        while driver.poll() is None and (now := time.monotonic()) < began + self._seconds:
            if now >= resize_at:
                resize_at += self._resize_s
                self._resizes += not self._job.cli("scale", "endless", f"work={next(sizes)}").returncode
            elif now >= kill_at:
                kill_at += self._kill_s
                self._kills += self._killed(next(targets))
            status = self._job.status()
            if status is not None and status.state == "running":
                taken = sample(self._job, status, now - began)
                if taken is not None:
                    yield taken
            time.sleep(every_s)

    def _killed(self, target: str) -> bool:
        try:
            with ControlClient(self._job.run_dir) as client:
                client.ask(InjectFault("kill", target))
        except MasterGoneError:
            return False
        return True


def drawn(outcome: Outcome, path: Path) -> None:
    """The curves of a run as a picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    minutes = [each.at / 60 for each in outcome.samples]
    curves = {
        "memory (MiB, resident)": ["master", "agent", "supervisor", "data/0", "work/0", "sink/0"],
        "run folder without lines and events, shared memory (MiB)": ["run folder", "/dev/shm"],
    }
    figure, axes = pyplot.subplots(4, 1, figsize=(9, 11), sharex=True, layout="constrained")
    for axis, (title, names) in zip(axes, curves.items(), strict=False):
        for name in names:
            axis.plot(minutes, [each.level.get((name, "MiB"), float("nan")) for each in outcome.samples], label=name)
        axis.set_title(title)
    for name in ("master", "agent"):
        found = [each.level.get((name, "descriptors"), float("nan")) for each in outcome.samples]
        axes[2].plot(minutes, found, label=name)
    axes[2].set_title("descriptors")
    axes[3].plot(minutes, [each.step for each in outcome.samples], label="committed steps")
    axes[3].set_title(f"steps; {outcome.kills} kills, {outcome.resizes} resizes")
    axes[3].set_xlabel("minutes")
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.legend(fontsize="small", loc="center left")
    figure.savefig(path, dpi=80)


def main(arguments: list[str] | None = None) -> int:
    """0 if every record was used once."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.endless", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="how long (default: 120)")
    parser.add_argument("--picture", type=Path, help="where to draw the curves")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rolemesh-endless-") as folder:
        outcome = Endless(Path(folder), 60 * given.minutes).run(every_s=max(1.0, given.minutes / 12))
        if not outcome.exact:
            print(Path(folder, "console").read_text()[-3000:])
    if given.picture:
        drawn(outcome, given.picture)
    said = "each record was used once" if outcome.exact else f"the sink has {outcome.found}, and not {outcome.due}"
    print(f"{outcome.samples[-1].step:,} steps, {outcome.kills} kills, {outcome.resizes} resizes: {said}")
    return 0 if outcome.exact else 1


if __name__ == "__main__":
    sys.exit(main())
