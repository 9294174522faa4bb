"""The resources that a running job uses, sampled from outside, and the difference between two times."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from tests.e2e.harness import Job

from rolemesh.api.observer import JobStatus
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE

__all__ = ["Change", "Sample", "changes", "sample", "table"]

MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
SLACK = {"MiB": 0.5, "descriptors": 2, "files": 2, "µs": 1.0}
"""Differences that are too small to count, whatever part of the whole they are."""


class Sample(NamedTuple):
    """A moment: `level` by what and unit, such as ``("master", "MiB")``; `master_s` is the processor time of the master
    so far, `step` the last committed step."""

    at: float
    step: int
    master_s: float
    level: dict[tuple[str, str], float]


class Change(NamedTuple):
    """The first and the last value of a resource, in `unit`."""

    what: str
    unit: str
    first: float
    last: float

    @property
    def share(self) -> float:
        """How much more it is at last: 0.1 is a tenth."""
        return self.last / self.first - 1 if self.first else float(self.last > 0)

    def grown(self, share: float) -> bool:
        """Whether it has grown by more than `share`, and by more than what is too small to count."""
        return self.share > share and self.last - self.first > SLACK[self.unit]


def sample(job: Job, status: JobStatus, now: float) -> Sample | None:
    """None where the job changes just now: a process that was there has gone."""
    shm = [*Path("/dev/shm").glob(f"rolemesh-*{job_id(job)}*")]
    folder = [path for path in files([job.run_dir]) if path.name not in (EVENTS_FILE, METRICS_FILE)]
    level = {
        ("run folder", "MiB"): taken(folder),
        ("run folder", "files"): float(len(folder)),
        ("/dev/shm", "MiB"): taken(files(shm)),
        ("/dev/shm", "files"): float(len(files(shm))),
    }
    try:
        for name, process in processes(status).items():
            level[name, "MiB"] = process.memory_info().rss / MIB
            level[name, "descriptors"] = float(process.num_fds())
        master = psutil.Process(status.master_pid).cpu_times()
    except psutil.NoSuchProcess:
        return None
    return Sample(now, status.committed, master.user + master.system, level)


def job_id(job: Job) -> str:
    (found,) = job.ids()
    return found


def processes(status: JobStatus) -> dict[str, psutil.Process]:
    """All processes of a job on the local backend. Raises `psutil.NoSuchProcess`."""
    supervisor = psutil.Process(status.master_pid).parent()
    assert supervisor is not None
    names = {supervisor.pid: "supervisor", status.master_pid: "master"}
    names |= {agent.pid: "agent" for agent in status.agents}
    names |= {rank.pid: str(rank.ref) for rank in status.ranks}
    found = {names[supervisor.pid]: supervisor}
    for process in supervisor.children(recursive=True):
        # What is not known by name is the process that ranks are forked from, or a janitor.
        found[names.get(process.pid, " ".join(process.cmdline()[1:3]).rpartition(".")[2])] = process
    for pid, name in names.items():  # of an agent that has died ranks live on, and are nobody's children here
        if name not in found and psutil.pid_exists(pid):
            found[name] = psutil.Process(pid)
    return found


def files(places: Iterable[Path]) -> list[Path]:
    """All files below `places`; unlike `Path.rglob`, a folder that goes meanwhile has none."""
    return [Path(folder, name) for place in places for folder, _, names in os.walk(place) for name in names]


def taken(paths: Iterable[Path]) -> float:
    """MiB on the disk or in memory; a file that goes meanwhile takes none."""
    total = 0
    for path in paths:
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total / MIB


def changes(first: Sequence[Sample], last: Sequence[Sample]) -> list[Change]:
    """Between two spans of time: the most that was there at once, and the master's time per step."""
    found = [Change("master, per step", "µs", per_step(first), per_step(last))]
    for what, unit in sorted({name for each in (*first, *last) for name in each.level}):
        most = [max(each.level.get((what, unit), 0.0) for each in span) for span in (first, last)]
        found.append(Change(what, unit, *most))
    return found


def per_step(span: Sequence[Sample]) -> float:
    """Microseconds of processor time."""
    return 1e6 * (span[-1].master_s - span[0].master_s) / max(1, span[-1].step - span[0].step)


def table(found: Iterable[Change]) -> str:
    """For people."""
    return "\n".join(f"{c.what:18} {c.first:10.2f} → {c.last:10.2f} {c.unit:12} {c.share:+7.1%}" for c in found)
