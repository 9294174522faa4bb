"""The files by which a run is known: whole or as they were, whatever the disk does, and nobody waits for a pipe."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rolemesh.errors import RolemeshError
from rolemesh.runs.jsonl import read_metrics
from rolemesh.runs.run import RESULT_FILE
from rolemesh_durable.journal.line_file import last_line
from rolemesh_durable.journal.paging import pages
from rolemesh_durable.runs import Run
from rolemesh_runtime.json_file import write_json


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("needs to mount")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_on_a_full_disk_a_file_stays_as_it_was_and_nothing_is_left(small_disk: Path) -> None:
    path = small_disk / RESULT_FILE
    write_json(path, {"status": "before"})
    with (small_disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    for size in (1, 5000, 500_000):
        with pytest.raises(OSError, match="No space"):
            write_json(path, {"status": "x" * size})
    assert Run(small_disk).result() == {"status": "before"}
    assert {entry.name for entry in small_disk.iterdir()} == {RESULT_FILE, "filler"}
    (small_disk / "filler").unlink()
    write_json(path, {"status": "after"})
    assert Run(small_disk).result() == {"status": "after"}


def test_the_next_write_removes_the_files_of_a_killed_writer(tmp_path: Path) -> None:
    (tmp_path / ".result.json.k1ll3d").write_text("half")
    write_json(tmp_path / RESULT_FILE, {"status": "done"})
    assert [entry.name for entry in tmp_path.iterdir()] == [RESULT_FILE]


@pytest.mark.parametrize("name", ["result.json", "control.json", "run.json", "job.yaml"])
def test_a_pipe_in_the_place_of_a_file_is_an_error_and_no_wait(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    run = Run(tmp_path)
    read: dict[str, Any] = {"result.json": run.result, "control.json": run.control, "run.json": run.info}
    with pytest.raises(RolemeshError, match="no regular file"):
        read.get(name, lambda: run.job_value("seed"))()


def test_a_pipe_in_the_place_of_lines_is_an_error_and_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    os.mkfifo(path)
    for read in (lambda: list(pages(path, "step", -1)), lambda: list(read_metrics(path)), lambda: [last_line(path)]):
        with pytest.raises((OSError, RolemeshError), match="no regular file"):
            read()
