"""Files and names that are waited for until they are on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rolemesh_runtime.json_file import write_json
from rolemesh_runtime.syncing import sync_folder


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fsync(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_is_written_where_the_file_system_cannot_sync(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, number)
    write_json(tmp_path / "run.json", {"a": 1})
    assert (tmp_path / "run.json").exists()


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_json(tmp_path / "run.json", {"a": 1})
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []
