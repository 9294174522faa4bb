"""Real jobs with servers: kills, other numbers of servers, and what the services lose."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from rolemesh_embeddings.options import TableOptions
from rolemesh_embeddings.part import Part
from rolemesh_embeddings.table import Table

HERE = Path(__file__).parent
COMMAND = [str(Path(sys.executable).with_name("rolemesh"))]
STEPS, CHAOS_STEPS = 100, 300
TABLE = {"dim": 2, "begin": "zeros", "optimizer": {"use": "sgd", "lr": 1.0}}
FLOWS = """\
from rolemesh import flow

@flow
def edges(job, lag):
    keys = job.data.next()
    job.ps.update(job.learner.train(keys, job.ps.lookup(keys)), lag=lag)

@flow
def calls(job, lag):
    job.learner.train(job.data.next(), calls=[job.ps])
"""


def job(folder: Path, name: str, flow: str, *, lag: int = 0, steps: int | None = STEPS) -> Path:
    (folder / "flows.py").write_text(FLOWS)
    (folder / "learners.py").write_text((HERE / "learners.py").read_text())
    learner = "Learner" if flow == "edges" else "Caller"
    spec = {
        "name": name,
        "flow": f"flows.py:{flow}",
        "steps": steps,
        "params": {"lag": lag},
        "roles": {
            "data": {"use": "learners.py:Data", "resources": {"cpu": 0}},
            "ps": {
                "use": "embeddings", "world_size": 2, "resources": {"cpu": 0},
                "options": {"tables": {"count": TABLE}, "file_mb": 0.004},
            },
            "learner": {"use": f"learners.py:{learner}", "world_size": 2, "resources": {"cpu": 0}},
        },
        "failover": [{"use": "process"}, {"use": "job"}],
        "engine": {"use": "durable", "options": {"snapshots": {"persist_every": 20}}},
    }  # fmt: skip
    path = folder / f"{name}.json"
    path.write_text(json.dumps(spec))
    return path


def run(path: Path, *more: str) -> dict[str, Any]:
    runs = path.parent / "runs"
    done = subprocess.run(
        [*COMMAND, "run", str(path), "--backend", "local", "--runs-dir", str(runs), "--no-report", *more],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((runs / path.stem / "result.json").read_text()))


def counts(run_dir: Path) -> Mapping[int, float]:
    """Return the number of updates of each key, from the last checkpoint and its files."""
    kept = Path(json.loads((run_dir / "result.json").read_text())["kept"]["folder"])
    state: dict[str, Any] = {}
    for path in sorted((run_dir / kept if not kept.is_absolute() else kept).glob("ps/*.safetensors")):
        state |= {name.split("part.")[-1].split("@")[0]: value for name, value in load_file(path).items()}
    part = Part({"count": Table("count", TableOptions.model_validate(TABLE), 0)}, 0, 1, run_dir / "embeddings/ps", 1e9)
    part.restore({"part": state})
    store = part.tables["count"].store
    rows = store.rows()
    return dict(zip(store.columns["keys"][rows].tolist(), (-store.columns["values"][rows, 0]).tolist(), strict=True))


def sent(steps: int) -> Mapping[int, float]:
    from rolemesh.api.context import RankContext

    ctx, found = RankContext(seed=0), dict[int, float]()
    for step in range(steps):
        for key in ctx.rng("keys", step).integers(0, 2000, 64).tolist():
            found[key] = found.get(key, 0) + 1
    return found


def lines(run_dir: Path) -> Iterator[dict[str, Any]]:
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        yield json.loads(line)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_flow_of_edges_ends_with_the_same_bits_whatever_dies(tmp_path: Path, lag: int) -> None:
    """Servers and workers are killed; no gradient is lost or applied twice."""
    quiet = run(job(tmp_path, "quiet", "edges", lag=lag))
    killed = run(job(tmp_path, "killed", "edges", lag=lag), "--chaos", "kills=6,seed=3,targets=ps/*,learner/*")
    assert killed["recoveries"]
    assert killed["state_sha256"] == quiet["state_sha256"]
    assert counts(tmp_path / "runs/killed") == sent(STEPS - lag)


def missing(run_dir: Path, steps: int = STEPS) -> tuple[float, float]:
    """Return how many gradients are not in the tables, and how many could be in the updates that were counted as lost.

    Raises `AssertionError` if one was applied twice.
    """
    there, wanted = counts(run_dir), sent(steps)
    assert there.keys() <= wanted.keys()
    assert all(there.get(key, 0) <= count for key, count in wanted.items())
    lost = sum(line.get("updates_lost", 0) for line in lines(run_dir))
    return sum(wanted.values()) - sum(there.values()), lost * 32


def test_services_lose_only_what_is_counted(tmp_path: Path) -> None:
    """A server's death loses updates after its last snapshot; a caller's death neither loses nor repeats any."""
    run(job(tmp_path, "workers", "calls"), "--chaos", "kills=3,seed=1,targets=learner/*")
    assert counts(tmp_path / "runs/workers") == sent(STEPS)
    run(job(tmp_path, "servers", "calls"), "--chaos", "kills=4,seed=1,targets=ps/*")
    gone, counted = missing(tmp_path / "runs/servers")
    assert 0 < gone <= counted


@pytest.mark.parametrize("max_age", [pytest.param(0, marks=pytest.mark.more), 3])
def test_a_cached_row_is_never_older_than_the_bound(tmp_path: Path, max_age: int) -> None:
    """The caller compares each row with all that it pushed; the oldest one is exactly as old as it may be."""
    run(reader(tmp_path, max_age))
    found = list(lines(tmp_path / "runs/cached"))
    assert max(line["records"]["age"] for line in found) == max_age
    assert sum(line["cached"] for line in found) / len(found) > 0.1


@pytest.mark.more
def test_a_cache_has_nothing_that_a_killed_server_has_lost(tmp_path: Path) -> None:
    run(reader(tmp_path, 0), "engine.options.snapshots.every=8", "--chaos", "kills=4,seed=1,targets=ps/*")
    found = list(lines(tmp_path / "runs/cached"))
    assert sum(line.get("updates_lost", 0) for line in found) > 0
    assert sum(line["records"]["differ"] for line in found) == 0


def reader(folder: Path, max_age: int) -> Path:
    path = job(folder, "cached", "calls")
    spec = json.loads(path.read_text())
    spec["roles"]["learner"] = {"use": "learners.py:Reader", "options": {"max_age": max_age}, "resources": {"cpu": 0}}
    path.write_text(json.dumps(spec))
    return path


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("flow", ["edges, lag 0", "edges, lag 2", "calls"])
def test_twenty_kills_of_ranks_agents_and_masters(tmp_path: Path, flow: str, seed: int) -> None:
    """No gradient is applied twice. On edges none is lost, and rows are as old as the lag at most."""
    kind, _, lag = flow.partition(", lag ")
    path = job(tmp_path, "killed", kind, lag=int(lag or 0), steps=CHAOS_STEPS)
    ended = run(path, "--chaos", f"kills=20,seed={seed}")
    assert len(ended["recoveries"]) > 3
    gone, counted = missing(path.parent / "runs/killed", CHAOS_STEPS - int(lag or 0))
    if kind == "calls":
        assert gone <= counted
        return
    assert gone == 0
    staleness = [line["row_staleness"] for line in lines(tmp_path / "runs/killed") if "row_staleness" in line]
    assert max(staleness, default=0) <= int(lag)
    assert ended["state_sha256"] == run(job(tmp_path, "quiet", kind, lag=int(lag), steps=CHAOS_STEPS))["state_sha256"]


def test_servers_come_and_go_while_the_job_runs(tmp_path: Path) -> None:
    """2 → 3 → 2 servers: every gradient is applied once, and the job's end is that of a job without resizes."""
    path, runs = job(tmp_path, "scaled", "edges", lag=1, steps=None), tmp_path / "runs"
    command = [*COMMAND, "run", str(path), "--backend", "local", "--runs-dir", str(runs), "--no-report"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for size in (3, 2):
            asked = [*COMMAND, "scale", "scaled", f"ps={size}", "--runs-dir", str(runs), "--json"]
            while (done := subprocess.run(asked, capture_output=True, text=True)).returncode and running.poll() is None:
                time.sleep(0.1)  # the job is still starting
            assert done.returncode == 0, done.stdout + done.stderr
        subprocess.run(
            [*COMMAND, "stop", "--drain", "scaled", "--runs-dir", str(runs)], check=True, capture_output=True
        )
        said = running.communicate()[0]
    assert running.returncode == 0, said
    events = [json.loads(line) for line in (runs / "scaled/events.jsonl").read_text().splitlines()]
    assert sum(event["kind"] == "resized" for event in events) == 2, said
    steps = json.loads((runs / "scaled/result.json").read_text())["committed_steps"]
    assert counts(runs / "scaled") == sent(steps - 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("flow", ["edges", "calls"])
def test_servers_die_while_their_number_changes(tmp_path: Path, flow: str, seed: int) -> None:
    """2 → 3 → 1 → 2 → 4 → 1 servers, of which one is killed every few seconds: on edges no gradient is lost."""
    lag, runs, over = int(flow == "edges"), tmp_path / "runs", threading.Event()
    path, rng = job(tmp_path, f"dying{os.getpid()}", flow, lag=lag, steps=None), random.Random(seed)
    often = "failover:=[{use: process, options: {max_attempts: 999}}, {use: job, options: {max_attempts: 999}}]"
    command = [*COMMAND, "run", str(path), often, "--backend", "local", "--runs-dir", str(runs), "--no-report"]

    def kill() -> None:
        while not over.wait(rng.uniform(1, 4)):
            for place in list(Path("/proc").glob("[0-9]*/cmdline")):
                with suppress(OSError):
                    if place.read_text().startswith(f"rolemesh: {path.stem} ps/") and rng.random() < 0.5:
                        os.kill(int(place.parent.name), signal.SIGKILL)

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        killer = threading.Thread(target=kill)
        killer.start()
        for size in (3, 1, 2, 4, 1):
            scale = [*COMMAND, "scale", path.stem, f"ps={size}", "--runs-dir", str(runs), "--json"]
            while subprocess.run(scale, capture_output=True).returncode and running.poll() is None:
                time.sleep(0.1)  # the job starts, or goes back
        over.set()
        killer.join()
        stop = [*COMMAND, "stop", "--drain", path.stem, "--runs-dir", str(runs)]
        subprocess.run(stop, check=True, capture_output=True)
        said = running.communicate()[0]
    assert running.returncode == 0, said
    ended = json.loads((runs / path.stem / "result.json").read_text())
    assert len(ended["recoveries"]) > 7
    gone, counted = missing(runs / path.stem, ended["committed_steps"] - lag)
    assert gone <= (counted if flow == "calls" else 0)
