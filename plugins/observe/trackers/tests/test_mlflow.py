"""MLflow reads back from a database what the observer logged, as one run of two masters."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from mlflow.utils.validation import _validate_metric_name

from rolemesh.api.observer import Event, RunInfo, StepMetrics
from rolemesh_mlflow import MlflowObserver, MlflowOptions
from rolemesh_mlflow.names import allowed


def started(folder: Path) -> MlflowObserver:
    observer = MlflowObserver(MlflowOptions(tags={"team": "t"}, interval_s=0))
    observer.job_started(RunInfo("grpo", str(folder), 4, {}, ()))
    return observer


def line(step: int, **values: float) -> StepMetrics:
    return StepMetrics(step, 1, 1000.0 + step, values)


def test_importing_the_plugin_imports_no_mlflow() -> None:
    code = (
        "import sys, rolemesh_mlflow as p; p.MlflowObserver(p.MlflowOptions())\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('mlflow', 'sqlalchemy', 'fastapi')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_two_masters_log_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "chosen by the variable")
    (tmp_path / "job.yaml").write_text("name: grpo\nroles: {a: {env: {HF_TOKEN: hf_x}}}\n")
    (tmp_path / "events.jsonl").write_text('{"seq": 1, "time": 900.5, "kind": "job_started", "data": {}}\n')
    first = started(tmp_path)
    first.steps_finished((line(0, reward=0.25), line(1, reward=math.nan)))
    first.event(Event(7, 1, 1.0, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0}))
    second = started(tmp_path)
    second.steps_finished((line(1, reward=math.nan), line(2, reward=0.5)))
    second.job_ended({"status": "failed"})
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    [run] = client.search_runs([client.get_experiment_by_name("chosen by the variable").experiment_id])
    assert (run.info.run_name, run.info.status, run.info.start_time) == ("grpo", "FAILED", 900_500)
    assert run.data.params == {"name": "grpo", "roles.a.env.HF_TOKEN": "***"}
    assert run.data.tags["team"] == "t"
    assert run.data.tags["event.000007"].startswith("recovered after step 1: recovery 2: a/0 ready again")
    points = sorted((m.step, m.timestamp, m.value) for m in client.get_metric_history(run.info.run_id, "reward"))
    assert [point[:2] for point in points] == [(0, 1000_000), (1, 1001_000), (2, 1002_000)]
    assert math.isnan(points[1][2])


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("eval/größe x", "eval/größe x"),
        ("..", "__-"),
        ("../x", "___x-"),
        ("a|b", "a_b-"),
        ("a//b", "a__b-"),
        ("acc@1", "acc_1-"),
    ],
)
def test_names_become_such_as_mlflow_allows(name: str, found: str) -> None:
    _validate_metric_name(allowed(name))
    assert allowed(name).startswith(found)


def test_no_two_names_become_one() -> None:
    names = ["acc@1", "acc%1", "acc_1", "a/b", "a//b", "a__b", "x" * 300, "x" * 301, "x" * 240, "", "_", ".", "/"]
    assert len({allowed(name) for name in names}) == len(names)
