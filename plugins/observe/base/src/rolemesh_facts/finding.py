"""Finds the folder of a run for a command that reads it, and says what keeps this user from reading it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rolemesh.errors import RolemeshError
from rolemesh.runs.jsonl import links
from rolemesh.runs.run import EVENTS_FILE, JOB_FILE, LOGS_DIR, METRICS_FILE
from rolemesh_durable.api.jobs import find_run
from rolemesh_facts.waiting import answered
from rolemesh_recorder.lines import FLOW_FILE, RECORD_DIR
from rolemesh_recorder.rows import ROWS_DIR
from rolemesh_runtime.run_files import LINK

__all__ = ["hindrance", "may_read", "readable_run"]


def readable_run(job: str, folder: Path) -> Path:
    """Return the folder of the run of the job named `job` in `folder`; `job` may also be a run's path.

    Raises `RolemeshError` if there is no such run, if this user may not read it, if a pipe or a device is in it, or if
    its store does not answer. A warning on stderr says what this user may not read of it, and the reader leaves out.
    """
    given = Path(job) if os.sep in job else folder / job
    path, lacks = answered(given, lambda: _looked(job, folder))
    if lacks:
        print(f"warning: {lacks}", file=sys.stderr)
    return path


def _looked(job: str, folder: Path) -> tuple[Path, str]:
    path = _readable(job, folder)
    return path, hindrance(path)


def _readable(job: str, folder: Path) -> Path:
    given = Path(job)
    if _is_folder(given) and not may_read(given):
        raise _unreadable(given)
    try:
        path = find_run(job, folder).path
    except RolemeshError as error:
        if os.sep in job and _is_folder(given):
            what, remedy = "the folder has no run in it", "give the folder that has run.json, such as runs/NAME"
            raise RolemeshError(what, where=job, remedy=remedy) from error
        raise
    for each in _entries(path):
        if not may_read(each):
            raise _unreadable(each)
    for each in _files(path):
        if os.path.lexists(each) and not os.path.isfile(each):
            what, remedy = "it is no regular file, so the run cannot be shown", "remove it, or copy the run without it"
            raise RolemeshError(what, where=str(each), remedy=remedy)
    needed = (RECORD_DIR, LOGS_DIR, EVENTS_FILE, METRICS_FILE, JOB_FILE) if links(str(path)) else ()
    if found := next((path / name for name in needed if os.path.islink(path / name)), None):
        raise RolemeshError(LINK, where=str(found), remedy="remove it, or put the file itself in its place")
    return path


def hindrance(path: Path) -> str:
    """Return in words what of a run a reader has to leave out, because this user may not read it, or because the
    folder is gone; "" for nothing."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return f"{path} is no longer there: somebody has removed or moved it. What is shown was read before"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}. What is shown was read before"
    closed = [each for each in (*_entries(path), *_spared(path)) if not may_read(each)]
    if not closed:
        return ""
    more = f" and {len(closed) - 1} others" if closed[1:] else ""
    return (
        f"{closed[0]}: this user may not read it{more}, so numbers are missing. Read the run as its owner, or let the "
        f"owner run: chmod -R a+rX {shlex.quote(str(path))}"
    )


def _spared(path: Path) -> Iterator[Path]:
    """Yield what a reader of the run can do without."""
    yield path / JOB_FILE
    record = path / RECORD_DIR
    for folder in (path / LOGS_DIR, *_content(record), *_content(record / ROWS_DIR)):
        yield folder
        yield from _content(folder)


def _content(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries)
    except OSError:
        return []


def _entries(path: Path) -> Iterator[Path]:
    """Yield what a reader of the run needs. Files that only the owner reads, such as ``plan.json``, are not needed."""
    yield path
    yield from (path / name for name in (EVENTS_FILE, METRICS_FILE))
    record = path / RECORD_DIR
    if os.path.lexists(record):
        yield record
        yield from _content(record)


def _files(path: Path) -> Iterator[Path]:
    """Yield what must be regular files, but of the parts of ranks' records only those that are none."""
    record = path / RECORD_DIR
    yield from (path / EVENTS_FILE, path / METRICS_FILE, record / FLOW_FILE)
    for folder in _content(record):
        with suppress(OSError), os.scandir(folder) as entries:
            yield from (
                folder / entry.name
                for entry in entries  # their types are known without a look at each of a hundred thousand
                if entry.name.endswith(".jsonl") and not entry.is_file(follow_symlinks=not links(str(folder)))
            )


def may_read(path: Path) -> bool:
    """Return whether this process may read a file or a folder. One that has just been removed counts as readable."""
    needed = os.R_OK | os.X_OK if _is_folder(path) else os.R_OK
    return os.access(path, needed, effective_ids=True) or not os.access(path, os.F_OK, effective_ids=True)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _unreadable(path: Path) -> RolemeshError:
    what = "this user may not read it, so the run cannot be shown"
    return RolemeshError(what, where=str(path), remedy="run it as the owner, or let the owner run: chmod -R a+rX")
