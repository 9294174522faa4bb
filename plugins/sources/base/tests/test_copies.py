"""Data files that are copied, restored, mounted again or renamed between two reads: each record is read once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reading_files import Reading, write

from rolemesh_sources import SourceError

OLD = range(100, 130)
"""Numbers of lines with more bytes than those that identify a file."""


def _copied(data: Path) -> None:
    data.rename(data.with_name("old"))
    shutil.copytree(data.with_name("old"), data, copy_function=shutil.copyfile)
    shutil.rmtree(data.with_name("old"))


def _synchronized(data: Path) -> None:
    """Replace each file by a copy with the same times, as ``rsync -a`` does."""
    for path in data.iterdir():
        shutil.copy2(path, data.parent / "part")
        (data.parent / "part").replace(path)


@pytest.fixture(params=["goes on", "restarted"])
def reading(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "data").mkdir()
    made = Reading(tmp_path, path="data/*.jsonl")

    def turn(**options: Any) -> Reading:
        made.options |= options
        if request.param == "restarted" or options:
            made.again()
        return made

    yield turn
    made.source.close()


@pytest.mark.parametrize("move", [_copied, _synchronized])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("numbers", [range(100, 104), OLD], ids=["short", "long"])
def test_a_copied_file_is_read_on(
    tmp_path: Path, reading: Any, move: Callable[[Path], None], skip: bool, numbers: range
) -> None:
    path = tmp_path / "data/a.jsonl"
    write(path, *numbers, end="")
    assert reading(skip=skip).all(2) == [100, 101]
    move(tmp_path / "data")
    assert reading().all() == [*numbers][2:-1]
    move(tmp_path / "data")
    write(path, end="\n")
    write(path, 7)
    assert reading().all() == [numbers[-1], 7]


def test_a_file_whose_copy_has_no_whole_line_yet_is_read_from_its_beginning(tmp_path: Path, reading: Any) -> None:
    path = tmp_path / "data/a.jsonl"
    write(path, 1, end="")
    assert reading().all() == []
    _copied(tmp_path / "data")
    write(path, end="\n")
    assert reading().all() == [1]


def test_a_copied_file_is_read_on_although_it_has_a_backup_beside_it(tmp_path: Path, reading: Any) -> None:
    path = tmp_path / "data/a.jsonl"
    write(path, *OLD)
    shutil.copy(path, f"{path}.bak")
    assert reading().all(2) == [100, 101]
    _copied(tmp_path / "data")
    write(path, 7)
    assert reading().all() == [*[*OLD][2:], 7]


def test_a_file_of_the_same_size_with_other_content_is_not_the_same_file(tmp_path: Path, reading: Any) -> None:
    path = tmp_path / "data/a.jsonl"
    write(path, *OLD)
    assert reading().all() == [*OLD]
    write(path, *OLD[:-1], 999, mode="w")
    with pytest.raises(SourceError, match="is gone: the file was truncated or replaced"):
        reading().all()


def test_an_older_version_of_a_file_is_not_read_again(tmp_path: Path, reading: Any) -> None:
    path = tmp_path / "data/a.jsonl"
    write(path, *OLD[:-1])
    shutil.copy(path, tmp_path / "backup")
    write(path, OLD[-1])
    assert reading().all() == [*OLD]
    (tmp_path / "backup").replace(path)
    with pytest.raises(SourceError, match="is gone: the file was truncated or replaced"):
        reading().all()
    assert reading(skip=True).all() == []
    write(path, 7)
    assert reading().all() == [7]


def test_rotated_files_that_are_copied_with_their_times_are_read_in_their_order(tmp_path: Path, reading: Any) -> None:
    path = tmp_path / "data/a.jsonl"
    for n, numbers in enumerate([OLD, (2, 3), (4, 5)]):
        for older in sorted(path.parent.glob("a.jsonl.*"), reverse=True):
            older.rename(f"{path}.{int(older.suffix[1:]) + 1}")
        if path.exists():
            path.rename(f"{path}.1")
        write(path, *numbers)
        os.utime(path, (n, n))
        if not n:
            assert reading().all(3) == [*OLD][:3]
    _synchronized(tmp_path / "data")
    assert reading().all(29) == [*[*OLD][3:], 2, 3]
    _synchronized(tmp_path / "data")
    assert reading().all() == [4, 5]


NAMES = {
    "numbers": lambda n: f"a.jsonl.{n}" if n else "a.jsonl",
    "dates": lambda n: f"a.jsonl-202611{30 - n}" if n else "a.jsonl",
    "seconds since 1970": lambda n: f"a.jsonl-{1764500000 - n}" if n else "a.jsonl",
}
"""The names that `RotatingFileHandler`, and logrotate with `dateext`, give the file that was rotated `n` times."""


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("restored", [False, True], ids=["in place", "restored"])
def test_rotated_files_with_the_same_time_are_read_in_the_order_of_their_names(
    tmp_path: Path, reading: Any, names: Callable[[int], str], restored: bool
) -> None:
    folder = tmp_path / "data"
    write(folder / "a.jsonl", *OLD)
    assert reading().all(25) == [*OLD][:25]
    (folder / "a.jsonl").rename(folder / names(12))
    for n in range(11, -1, -1):
        write(folder / names(n), 100 - n)
    for each in folder.iterdir():
        os.utime(each, (1, 1))
    if restored:
        _synchronized(folder)
    assert reading().all() == [*[*OLD][25:], *range(89, 101)]


@pytest.mark.parametrize("copy", [False, True])
def test_a_file_whose_new_name_is_another_partition_is_an_error(tmp_path: Path, reading: Any, copy: bool) -> None:
    path = tmp_path / "data/a.jsonl"
    write(path, *OLD)
    assert reading().all(25) == [*OLD][:25]
    path.rename(path.with_name("b.jsonl"))
    if copy:
        _copied(tmp_path / "data")
    with pytest.raises(SourceError, match=r"it has what was read as a\.jsonl, so its records would be read twice"):
        (reading().source.partitions(), reading().all())
    path.with_name("b.jsonl").rename(path)
    assert reading().all() == [*OLD][25:]


def test_a_folder_that_is_not_mounted_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    reading = Reading(tmp_path, path="data/*.jsonl", skip=True)
    write(tmp_path / "data/a.jsonl", *OLD)
    assert reading.all(3) == [*OLD][:3]
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    reading.again()
    with pytest.raises(SourceError, match="the folder of the files is gone"):
        reading.all()
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    assert reading.all() == [*OLD][3:]
