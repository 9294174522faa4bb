"""The client's messages have what the observer logged offline: values, configuration, and one run of two masters."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wandb.proto.wandb_internal_pb2 import Record

from rolemesh.api.observer import Event, RunInfo, StepMetrics
from rolemesh_wandb import WandbObserver, WandbOptions

BLOCK = 32768


def started(folder: Path) -> WandbObserver:
    observer = WandbObserver(WandbOptions(mode="offline", project="p", tags=["t"], interval_s=0))
    observer.job_started(RunInfo("grpo", str(folder), 4, {}, ()))
    return observer


def line(step: int, **values: float) -> StepMetrics:
    return StepMetrics(step, 1, 1.7e9 + step, values)


def records(file: Path) -> list[Record]:
    """Return the records of a file: a log in the format of LevelDB, with a header of seven bytes."""
    data, parts, found, at = file.read_bytes(), b"", [], 7
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            found.append(Record.FromString(parts))
            parts = b""
    return found


def history(found: list[Record]) -> list[dict[str, Any]]:
    rows = [r.history for r in found if r.HasField("history")]
    return [
        {"step": row.step.num} | {item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.item}
        for row in rows
    ]


def test_importing_the_plugin_imports_no_wandb() -> None:
    code = (
        "import sys, rolemesh_wandb as p; p.WandbObserver(p.WandbOptions())\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('wandb', 'google', 'opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_two_masters_log_one_run(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: grpo\nroles: {a: {env: {HF_TOKEN: hf_x}}}\n")
    first = started(tmp_path)
    first.steps_finished((line(0, reward=0.25, _step=7.0, status=3.0), line(1, reward=math.nan)))
    events = [
        Event(n, 1, 1.7e9, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0}) for n in (1, 2)
    ]
    (tmp_path / "events.jsonl").write_bytes(msgspec.json.encode(events[0]) + b"\n")
    first.event(events[0])
    first.steps_finished((line(2, reward=0.5),))
    first.job_ended({"status": "interrupted"})
    second = started(tmp_path)
    second.event(events[1])
    second.steps_finished((line(2, reward=0.5), line(3, reward=1.0)))
    second.job_ended({"status": "done"})
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime)
    found = [records(file) for file in files]
    rows = [[(row["step"], row["reward"]) for row in history(each)] for each in found]
    assert [step for each in rows for step, _ in each] == [0, 1, 2, 3]
    assert math.isnan(rows[0][1][1])
    assert [history(each)[-1]["events/recovered"] for each in found] == [1, 2]
    assert 7.0 in history(found[0])[0].values(), "a metric of the name _step is not the number of the step"
    (begun,) = {(r.run.run_id, r.run.display_name, tuple(r.run.tags)) for each in found for r in each if r.run.run_id}
    assert begun[1:] == ("grpo", ("t",))
    assert b"hf_x" not in b"".join(file.read_bytes() for file in files)


@pytest.mark.soak
def test_the_clients_variables_hold_unless_an_option_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"MODE": "offline", "PROJECT": "p", "NAME": "n", "TAGS": "x,y", "RUN_ID": "abc", "RUN_GROUP": "g"}
    for name, value in (told | {"ENTITY": "e", "DIR": str(tmp_path / "elsewhere")}).items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    (tmp_path / "elsewhere").mkdir()
    for options in ({}, {"project": "q", "run": "m", "tags": ["z"], "entity": "f", "group": "h"}):
        observer = WandbObserver(WandbOptions(interval_s=0, **options))
        observer.job_started(RunInfo("grpo", str(tmp_path / (options.get("run", "run"))), 4, {}, ()))
        observer.steps_finished((line(0, reward=0.25),))
        observer.job_ended({"status": "done"})
    files = sorted(tmp_path.glob("elsewhere/wandb/offline-run-*/run-abc.wandb"), key=lambda file: file.stat().st_mtime)
    found = [next(r.run for r in records(file) if r.HasField("run")) for file in files]
    assert [(r.project, r.display_name, list(r.tags), r.entity, r.run_group) for r in found] == [
        ("p", "n", ["x", "y"], "e", "g"),
        ("q", "m", ["z"], "f", "h"),
    ]


@pytest.mark.soak
def test_a_disabled_client_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    observer = WandbObserver(WandbOptions(interval_s=0))
    observer.job_started(RunInfo("grpo", str(tmp_path), 4, {}, ()))
    observer.steps_finished((line(0, reward=0.25),))
    observer.job_ended({"status": "done"})
    assert [record.message for record in caplog.records if record.name.startswith("rolemesh")] == []
    assert not (tmp_path / "wandb").exists()
