"""Real jobs whose tables grow until they no longer fit in the memory of their servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
GROUPS = Path("/sys/fs/cgroup/memory")
COMMAND = [str(Path(sys.executable).with_name("rolemesh"))]
FLOW = """\
from rolemesh import flow

@flow
def grow(job):
    job.ps.update(job.data.next())
"""
TABLE = {"dim": 16, "begin": "zeros", "optimizer": {"use": "adam"}}
"""A row needs 0.2 kB, and each step makes 4000."""


def start(folder: Path, steps: int | None, ps: dict[str, Any], **more: Any) -> subprocess.Popen[str]:
    (folder / "flows.py").write_text(FLOW)
    for name in ("learners.py", "capped.py"):
        (folder / name).write_text((HERE / name).read_text())
    ps = {"use": "embeddings", "options": {"tables": {"count": TABLE}}} | ps
    spec = {
        "name": "grow",
        "flow": "flows.py:grow",
        "steps": steps,
        "roles": {"data": {"use": "learners.py:Growing", "resources": {"cpu": 0}}, "ps": ps},
        "failover": [{"use": "more-memory", "options": {"killed": True}}, {"use": "process"}, {"use": "job"}],
    }
    (folder / "grow.json").write_text(json.dumps(spec | more))
    command = [*COMMAND, "run", str(folder / "grow.json"), "--runs-dir", str(folder / "runs"), "--no-report"]
    local = ("--backend", "local", "--nodes", "1x(cpu=2,memory_gb=1)")
    return subprocess.Popen([*command, *local], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def data_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the data of the events of a kind, so far."""
    path = folder / "runs/grow/events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [event["data"] for event in events if event["kind"] == kind]


def result(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "runs/grow/result.json").read_text()))


def last_line(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "runs/grow/metrics.jsonl").read_text().splitlines()[-1]))


@pytest.mark.more
def test_servers_are_added_while_a_table_grows(tmp_path: Path) -> None:
    scaler = {"use": "memory", "options": {"period_s": 0.5, "cool_down_s": 0.5}}
    ps = {"world_size": {"min": 1, "max": 3, "start": 1}, "resources": {"cpu": 0, "memory_gb": 0.05}}
    with start(tmp_path, None, ps, plugins={"scalers": [scaler]}) as running:
        while running.poll() is None and not any(each["sizes"]["ps"] == 3 for each in data_of(tmp_path, "resized")):
            time.sleep(0.1)
        stop = [*COMMAND, "stop", "--drain", "grow", "--runs-dir", str(tmp_path / "runs")]
        subprocess.run(stop, check=True, capture_output=True)
        said = running.communicate()[0]
    assert running.returncode == 0, said
    assert data_of(tmp_path, "resize_asked")[0]["reason"].startswith("scaler memory: ps should have ")
    assert {each["level"] for each in result(tmp_path)["recoveries"]} == {"resize"}
    assert last_line(tmp_path)["rows_count"] == 4000 * result(tmp_path)["committed_steps"]


@pytest.mark.soak
@pytest.mark.skipif(not os.access(GROUPS / "cgroup.procs", os.W_OK), reason="NO CONTROL GROUP OF MEMORY (version 1)")
def test_a_server_that_the_kernel_kills_for_memory_gets_more(tmp_path: Path) -> None:
    """Rows of files that a restarted rank maps need no memory, since the kernel may drop them. So later rows count."""
    resources, steps = {"cpu": 0, "memory_gb": 0.02, "most": {"memory_gb": 0.8}}, 240
    with start(tmp_path, steps, {"use": "capped.py:Capped", "resources": resources}) as running:
        said = running.communicate()[0]
    for group in GROUPS.glob(f"rolemesh-{tmp_path.name}-*"):
        group.rmdir()
    assert running.returncode == 0, said
    assert {each["level"] for each in result(tmp_path)["recoveries"]} == {"more-memory"}
    given = [each["resources"]["ps"]["memory_gb"] for each in data_of(tmp_path, "replanned")]
    assert given[:2] == [0.04, 0.08]
    assert last_line(tmp_path)["rows_count"] == 4000 * steps
