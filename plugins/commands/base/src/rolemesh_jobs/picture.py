"""The state of jobs as plain data, for ``rolemesh status --json`` and other programs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.observer import JobStatus, RunInfo
from rolemesh.errors import RolemeshError
from rolemesh.runs.run import runs_folder
from rolemesh_console.kept import export_command
from rolemesh_durable.api.jobs import ControlFile, LivingRun, list_runs
from rolemesh_jobs.runs import find
from rolemesh_runtime.lock import is_held
from rolemesh_runtime.waiting import Waiting, waiting_jobs

__all__ = ["job_status", "job_statuses"]

SILENT = "its master does not answer now, but the job lives: a new one may be on its way"
DEAD = "its master does not answer; 'rolemesh events' shows what it journalled last"


def job_status(job: str | Path, runs_dir: str | Path | None = None, *, timeout_s: float = 2.0) -> dict[str, Any]:
    """Return the state of a job as JSON values, as ``rolemesh status JOB --json`` prints it. Any process may call it.

    `job` is its name in `runs_dir` (default: ``ROLEMESH_RUNS`` or ``runs``), or the path of its run. `timeout_s` is the
    number of seconds in which the master must answer. Raises `RolemeshError` if there is no such run.
    """
    for waiting in waiting_jobs(runs_folder(runs_dir)):
        if waiting.job == str(job):
            return _waiting(waiting, runs_folder(runs_dir))
    return _pictures([find(str(job), runs_dir)], timeout_s)[0]


def job_statuses(runs_dir: str | Path | None = None, *, timeout_s: float = 2.0) -> list[dict[str, Any]]:
    """Return the states of all runs in `runs_dir`: first the jobs that wait for room, then the latest run first. The
    function asks all masters at once."""
    folder = runs_folder(runs_dir)
    waiting = {each.job: _waiting(each, folder) for each in waiting_jobs(folder)}
    runs = [LivingRun(run.path) for run in list_runs(folder) if run.name not in waiting]
    return [*waiting.values(), *_pictures(runs, timeout_s)]


def _pictures(runs: list[LivingRun], timeout_s: float) -> list[dict[str, Any]]:
    return [_picture(run, status) for run, status in zip(runs, _statuses(runs, timeout_s), strict=True)]


def _statuses(runs: list[LivingRun], timeout_s: float) -> list[JobStatus | None]:
    """Ask all masters at once. The status is None if a job has ended or its master does not answer within
    `timeout_s`."""
    if not runs:
        return []

    def ask(run: LivingRun) -> JobStatus | None:
        try:
            return run.status(timeout_s) if run.result() is None else None
        except RolemeshError:
            return None  # a file of it cannot be read, which must not hide the others

    with ThreadPoolExecutor(min(len(runs), 16)) as pool:
        return list(pool.map(ask, runs))


def _nothing(name: str, path: Path, state: str, message: str) -> dict[str, Any]:
    """Return the state of a job of which nothing else is known."""
    return {
        "name": name,
        "state": state,
        "committed_steps": None,
        "steps": None,
        "wall_s": None,
        "started": None,
        "backend": "",
        "master": None,
        "agents": [],
        "ranks": [],
        "message": message,
        "warnings": [],
        "resources": {},
        "run_dir": str(path),
    }


def _waiting(waiting: Waiting, folder: Path) -> dict[str, Any]:
    """Return the state of a job that waits for room."""
    told = _nothing(waiting.job, folder / waiting.job, "waiting", str(waiting))
    return told | {"committed_steps": 0, "wall_s": round(max(0.0, time.time() - waiting.since), 3)}


def _picture(run: LivingRun, status: JobStatus | None) -> dict[str, Any]:
    """Return the state of a run from its master's `status`, or else from its files."""
    result, info, control, unreadable = _files(run)
    known = _nothing(run.name, run.path, "dead", DEAD) | {
        "steps": info.steps if info else None,
        "started": control.started if control else None,
        "backend": control.backend if control else info.backend if info else "",
        "master": {"pid": control.pid, "node": None} if control else None,
    }
    if result is not None:
        # The master may have written it between our question and its answer: it is newer.
        known |= {key: result.get(key) for key in ("committed_steps", "steps", "wall_s", "message")}
        known |= {"state": result.get("status"), "master": None}
        known |= {key: result[key] for key in ("state_sha256", "failure", "kept", "not_kept") if key in result}
        known |= {"export": export_command(run.path)} if (result.get("kept") or {}).get("exports") else {}
    elif status is not None:
        known |= {
            "state": status.state,
            "committed_steps": status.committed + 1,
            "steps": status.steps,
            "wall_s": round(max(0.0, time.time() - status.started), 3),
            "started": status.started,
            "master": {"pid": status.master_pid, "node": status.master_node, "epoch": status.epoch},
            "agents": msgspec.to_builtins(status.agents),
            "ranks": msgspec.to_builtins(status.ranks),
            "message": status.message or (status.finishing and f"finishing: {status.finishing}"),
            "warnings": list(status.warnings),
            "resources": status.resources,
        }
    elif unreadable is not None:
        known |= {"state": "unreadable", "message": _told(unreadable)}
    elif is_held(run.path):
        known |= {"state": "silent", "message": SILENT}
    elif control is None:
        known |= {"state": "new", "message": "its master has not begun, or could not"}
    return known


def _told(error: RolemeshError) -> str:
    return f"{Path(error.where or '').name}: {error.what}; {error.remedy}"


def _files(run: LivingRun) -> tuple[dict[str, Any] | None, RunInfo | None, ControlFile | None, RolemeshError | None]:
    try:
        return run.result(), run.info(), run.control(), None
    except RolemeshError as error:
        return None, None, None, error
