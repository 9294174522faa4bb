"""Running jobs for a benchmark: as a person does, on the command line, or step by step to hold a stopwatch to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.job.planning import check_placed
from rolemesh.job.prepared import prepare
from rolemesh_durable.backends import Backend
from rolemesh_durable.bundle import bundle_job
from rolemesh_durable.protocol.master_config import MasterConfig
from rolemesh_durable.runs import Run

__all__ = ["JOBS", "ROOT", "BenchmarkError", "run_job", "start_job", "times"]

ROOT = Path(__file__).resolve().parents[1]
JOBS = Path(__file__).parent / "jobs"


class BenchmarkError(Exception):
    """A job or a process of a benchmark failed."""


@contextmanager
def run_job(job: Path, *overrides: str, backend: Sequence[str] = ("--backend", "local")) -> Iterator[Path]:
    """``rolemesh run`` to its end; the run's folder, which is removed afterwards. Raises `BenchmarkError`."""
    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        command = [sys.executable, "-m", "rolemesh.cli", "run", str(job), *overrides, *backend, "--runs-dir", folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        (run_dir,) = [path for path in Path(folder).iterdir() if path.is_dir() and not path.name.startswith(".")]
        yield run_dir


def times(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the values that the ranks have recorded: ``<role>-<rank>`` → values."""
    found = sorted(run_dir.glob("*.times.json"))
    return {path.name.removesuffix(".times.json"): json.loads(path.read_text()) for path in found}


def start_job(
    job: Path, backend: Backend, *overrides: str, preload: Mapping[str, tuple[str, ...]]
) -> dict[str, dict[str, Any]]:
    """Run a job through the driver's parts, with modules for the zygotes to preload by role.

    Returns what the ranks have noted, and under ``driver`` when it was called (``called_ns``). Closes the backend.
    """
    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        run_dir = Path(folder, "run")
        run_dir.mkdir()
        called = time.monotonic_ns()
        try:
            prepared = prepare(job, overrides)
            cluster = backend.cluster()
            plan = prepared.plan(cluster)
            check_placed(plan)
            bundle = bundle_job(
                prepared,
                plan,
                cluster,
                run_dir=str(run_dir),
                backend=backend.name,
                may_move=backend.nodes_join,
                owned=False,
                ray_address=backend.address,
            )
            backend.start(_preloading(bundle, preload), -1)
            result = _result(run_dir, backend)
        finally:
            backend.close()
        if result["status"] != "done":
            logs = "\n".join(path.read_text()[-2000:] for path in sorted((run_dir / "logs").iterdir()))
            raise BenchmarkError(f"the job {job.name} {result['status']}: {result['message']}\n{logs}")
        return {**times(run_dir), "driver": {"called_ns": called}}


def _preloading(bundle: MasterConfig, preload: Mapping[str, tuple[str, ...]]) -> MasterConfig:
    environments = {
        name: msgspec.structs.replace(each, preload=(*each.preload, *preload.get(name, ())))
        for name, each in bundle.job.environments.items()
    }
    return msgspec.structs.replace(bundle, job=msgspec.structs.replace(bundle.job, environments=environments))


def _result(run_dir: Path, backend: Backend) -> dict[str, Any]:
    while True:
        alive = backend.alive()
        result = Run(run_dir).result()
        if result is not None:
            return result
        if not alive:
            raise BenchmarkError(f"the master died; see {os.listdir(run_dir / 'logs')}")
        time.sleep(0.02)
