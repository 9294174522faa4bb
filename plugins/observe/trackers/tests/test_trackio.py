"""Trackio reads back what the observer logged, as one run of two masters."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rolemesh.api.observer import Event, RunInfo, StepMetrics
from rolemesh_trackio import TrackioObserver, TrackioOptions

READ = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage as s
[run] = s.get_runs("rolemesh")
print(json.dumps([run, s.get_logs("rolemesh", run), s.get_run_config("rolemesh", run), s.get_alerts("rolemesh")]))
"""


def line(step: int, **values: float) -> StepMetrics:
    return StepMetrics(step, 1, 1000.0 + step, values)


def started(folder: Path) -> TrackioObserver:
    observer = TrackioObserver(TrackioOptions(interval_s=0))
    observer.job_started(RunInfo("grpo", str(folder), 4, {}, ()))
    return observer


def read(folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", READ],
        env={**os.environ, "TRACKIO_DIR": str(folder / "trackio")},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_the_plugin_imports_no_trackio() -> None:
    code = (
        "import sys, rolemesh_trackio as p; p.TrackioObserver(p.TrackioOptions())\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('trackio', 'gradio_client', 'huggingface_hub')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_two_masters_log_one_run(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: grpo\nroles: {a: {env: {HF_TOKEN: hf_x}}}\n")
    first = started(tmp_path)
    first.steps_finished((line(0, reward=0.25), line(1, reward=math.nan)))
    first.event(Event(1, 1, 1.0, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0}))
    first.job_ended({"status": "interrupted"})
    second = started(tmp_path)
    second.steps_finished((line(1, reward=0.5), line(2, reward=1.0)))
    second.job_ended({"status": "done"})
    run, logs, config, alerts = read(tmp_path)
    assert run.startswith("grpo-")
    assert [each["step"] for each in logs] == [0, 1, 2]
    assert (logs[0]["reward"], logs[2]["reward"]) == (0.25, 1.0)
    assert math.isnan(float(logs[1]["reward"]))
    assert config["roles.a.env.HF_TOKEN"] == "***"
    assert [(each["title"], each["step"]) for each in alerts] == [("recovered", 1)]


@pytest.mark.soak
def test_a_process_that_was_killed_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    observer = started(tmp_path)
    for child in psutil.Process().children():
        if "rolemesh_trackio.child" in child.cmdline():
            child.kill()
            child.wait()
    observer.steps_finished((line(0, reward=0.25),))
    observer.job_ended({"status": "done"})
    assert "the tracker trackio gets no metrics through" in caplog.text
    assert [each["step"] for each in read(tmp_path)[1]] == [0]
