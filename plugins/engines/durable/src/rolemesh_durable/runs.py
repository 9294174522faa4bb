"""The runs folder: the runs in it, and the content of their files.

A run is a folder ``<runs>/<job's name>/``. The master writes ``run.json`` and ``control.json`` when it begins, and
``result.json`` before it exits. Commands read these to find a job's state, and ask the master.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rolemesh.api.observer import RunInfo
from rolemesh.errors import EXIT_FAILED, EXIT_NOT_STARTED, RolemeshError, nearest, raise_all
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh.runs.run import CONTROL_FILE, JOB_FILE, RESULT_FILE, RUN_FILE, RUNS_ENV
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_runtime.run_files import MOST_BYTES, content_in
from rolemesh_runtime.unreadable import DAMAGED, UnreadableError, unreadable
from rolemesh_runtime.waiting import waiting_jobs

__all__ = ["PLAN_FILE", "ControlFile", "ForeignRunError", "Run", "UnknownRunError", "find_run", "list_runs"]

PLAN_FILE = "plan.json"
MOST_JOB_BYTES = 8 << 20
"""Maximum size in bytes of a run's ``job.yaml``."""
SCRIPT_RUNS = ".rolemesh"
"""Folder of the runs of scripts, beside the runs folder: scripts have results of their own in ``runs``."""

T = TypeVar("T")


class UnknownRunError(RolemeshError):
    """There is no run of this name."""

    exit_code = EXIT_NOT_STARTED


class ForeignRunError(RolemeshError):
    """A refusal to act in this user's name on a job file that another user may have written."""

    exit_code = EXIT_FAILED


class ControlFile(msgspec.Struct, frozen=True):
    """Content of ``control.json``: the job in this folder, and the address of its master.

    `ray_address` and `namespace` are those of its Ray, "" on the local backend. `pid` is the master's, on the machine
    whose `boot_id` is `boot`; `started` is in seconds since 1970. Other machines reach it at `remote`, with `keys`; ""
    if none needs to. Only the file's user may read it (mode 0600).
    """

    job: str
    job_id: str
    backend: str
    endpoint: str
    pid: int
    started: float
    ray_address: str = ""
    namespace: str = ""
    boot: str = ""
    remote: str = ""
    keys: TransportKeys | None = None


class Run:
    """One run's folder. Every method reads the files again."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = os.path.basename(os.path.realpath(self.path))

    def control(self) -> ControlFile | None:
        """Return the master's address; None if it has not begun, or has ended in good order."""
        return _read(self.path / CONTROL_FILE, ControlFile)

    def info(self) -> RunInfo | None:
        """Return the job's roles, steps and operators; None before the master has begun."""
        return _read(self.path / RUN_FILE, RunInfo)

    def result(self) -> dict[str, Any] | None:
        """Return how the job ended; None if it has not. A result of an earlier job in this folder does not count."""
        result = _read(self.path / RESULT_FILE, dict[str, Any])
        control = None if result is None else self.control()
        if result is not None and control is not None and result.get("job_id") != control.job_id:
            return None
        return result

    def job_value(self, key: str, default: Any = None, *below: str) -> Any:
        """Return the value at top-level `key` (or keys `below` it) of the run's ``job.yaml``, with ``${VAR}`` expanded.

        The method ignores other keys: their variables need not be set here. Raises `JobFileError` for this key's
        variables. Raises `ForeignRunError` for variables in a run that others may write: another user may have chosen
        where their values go.
        """
        from rolemesh.job_file.environment import Expansion
        from rolemesh.job_file.places import parse_yaml

        path = self.path / JOB_FILE
        try:
            data, places = parse_yaml(_content(path, MOST_JOB_BYTES).decode(errors="replace"), str(path))
        except (FileNotFoundError, NotADirectoryError):
            return default
        expansion = Expansion(os.environ, places)
        found = data
        for each in (key, *below):
            if not isinstance(found, dict) or each not in found:
                return default
            found = found[each]
        value = expansion.expand(found, (key, *below))
        if expansion.used:
            names = ", ".join(f"${{{name}}}" for name in sorted(expansion.used))
            self.require_own(f"{names} is not taken from the environment")
        raise_all(expansion.errors)
        return value

    def require_own(self, refused: str, writers: int = 0o022) -> None:
        """Raise `ForeignRunError`, beginning with `refused`, if others may have written the run's ``job.yaml``.

        `writers`: the permissions that others must not have.
        """
        for path in (self.path, self.path / JOB_FILE):
            try:
                at = path.stat()
            except FileNotFoundError:
                continue
            if at.st_uid != os.geteuid():
                raise ForeignRunError(
                    f"{refused}: user {at.st_uid} owns the run, not user {os.geteuid()}",
                    where=str(path),
                    remedy=f"run this as user {at.st_uid}; events.jsonl and result.json can be read as they are",
                )
            if at.st_mode & writers:
                raise ForeignRunError(
                    f"{refused}: other users may write there (mode {at.st_mode & 0o777:o})",
                    where=str(path),
                    remedy=f"see that job.yaml is as it was, then: chmod go-w {path}",
                )


def list_runs(folder: Path) -> list[Run]:
    """Return the runs in `folder` and those of scripts beside it, the latest first.

    Empty if there are no such folders.
    """
    folders = [each for each in (folder, folder.parent / SCRIPT_RUNS) if each.is_dir()]
    found = [run for each in folders for run in map(Run, each.iterdir()) if _is_run(run.path)]
    return sorted(found, key=lambda run: (-_changed(run.path), run.name))


def find_run(job: str, folder: Path) -> Run:
    """Return the run of the job named `job` in `folder`, or of a script beside it; `job` may also be a run's path.

    Raises `UnknownRunError` with the existing runs, or with what a job waits for that has not begun, and
    `UnreadableError` if its folder cannot be read.
    """
    failed: UnreadableError | None = None
    for path in (folder / job, folder.parent / SCRIPT_RUNS / job, Path(job)):
        try:
            if job and _has_files(path):
                return Run(path)
        except OSError as error:
            failed = unreadable(path, error)
    if failed is not None:
        raise failed
    if waits := next((each for each in waiting_jobs(folder) if each.job == job), None):
        raise UnknownRunError(f"{job} has not begun: it {waits}", remedy=waits.ending)
    known = [run.name for run in list_runs(folder)]
    raise UnknownRunError(
        f"there is no run of a job {job!r} in {folder}{os.sep}",
        remedy=nearest(job, known) if known else f"no runs there at all; point --runs-dir or {RUNS_ENV} at theirs",
    )


def _is_run(path: Path) -> bool:
    try:
        return _has_files(path)
    except OSError:  # another user's file, or a broken disk
        return False


def _has_files(path: Path) -> bool:
    return any((path / name).is_file() for name in (RUN_FILE, CONTROL_FILE, RESULT_FILE, PLAN_FILE))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it has just been removed, or moved away
        return 0.0


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(_content(path), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (*UNDECODABLE, ValueError) as error:
        raise RolemeshError(f"the file is damaged: {error}", where=str(path), remedy=DAMAGED) from error


def _content(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of the file.

    Raises `FileNotFoundError`, `NotADirectoryError`, or `UnreadableError`.
    """
    try:
        return content_in(path.parent, path.name, most=most)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from error
