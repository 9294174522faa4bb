"""A run's folder: its place, the names of its files, and how they are written.

A run is a folder ``<runs>/<job's name>/``. An engine writes ``job.yaml`` and ``run.json`` when the
job begins, and ``result.json`` when it has ended.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

RUNS_ENV = "ROLEMESH_RUNS"
JOB_FILE = "job.yaml"
RUN_FILE = "run.json"
CONTROL_FILE = "control.json"
RESULT_FILE = "result.json"
EVENTS_FILE = "events.jsonl"
METRICS_FILE = "metrics.jsonl"
LOGS_DIR = "logs"


def runs_folder(path: str | Path | None = None) -> Path:
    """Return `path`, or else ``$ROLEMESH_RUNS``, or else ``./runs``."""
    return Path(path or os.environ.get(RUNS_ENV) or "runs")


def write_job_file(run_dir: Path, text: str) -> None:
    """Write ``job.yaml`` so that, whatever the umask, nobody else can change the database that its
    variables are sent to."""
    fd = os.open(run_dir / JOB_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def write_json(path: Path, value: Any) -> None:
    """Write `value` (anything that msgspec encodes) to `path`, indented. A reader sees the whole
    new file or the old one."""
    whole = path.with_name(f".{path.name}.new")
    whole.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    whole.replace(path)
