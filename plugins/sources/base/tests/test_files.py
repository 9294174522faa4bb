"""The source `files`: the kit, and what happens to files that somebody writes to."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from reading_files import Reading, write

from rolemesh_files import FilesOptions
from rolemesh_sources import SourceError
from rolemesh_testing import SourceConformance


class TestFiles(SourceConformance):
    plugin = "files"
    options = {"path": "data/*.jsonl", "until": "_DONE", "scan_s": 0}
    bad_options = ({"path": 1}, {"scan_s": -1})

    def add(self, base: Path, partition: int, rows: Sequence[Any]) -> None:
        (base / "data").mkdir(exist_ok=True)
        with (base / f"data/{partition}.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def finish(self, base: Path) -> None:
        (base / "data/_DONE").touch()


@pytest.fixture(params=["goes on", "restarted"])
def reading(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A function that gives the reader of ``a.jsonl``, which has the process of before or a new one."""
    made = Reading(tmp_path)

    def turn(**options: Any) -> Reading:
        made.options |= options
        made.source.options = FilesOptions(**made.options)
        if request.param == "restarted":
            made.again()
        return made

    yield turn
    made.source.close()


def test_a_line_is_read_when_it_is_whole(tmp_path: Path, reading: Any) -> None:
    write(tmp_path / "a.jsonl", 1, 2, end="")
    assert reading().all() == [1]
    write(tmp_path / "a.jsonl", end="\n")
    assert reading().all() == [2]


def test_a_file_that_is_renamed_is_read_to_its_end_before_the_new_one(tmp_path: Path, reading: Any) -> None:
    path = tmp_path / "a.jsonl"
    write(path, 1, 2, 3)
    assert reading().all(2) == [1, 2]
    path.rename(tmp_path / "a.jsonl.1")
    assert reading().all() == [3]
    write(tmp_path / "a.jsonl.1", 4)
    path.touch()
    assert reading().all() == [4]
    write(path, 5)
    assert reading().all() == [5]


def test_a_file_that_is_renamed_again_and_again_is_read_in_the_order_of_writing(tmp_path: Path, reading: Any) -> None:
    path = tmp_path / "a.jsonl"
    write(path, 1)
    assert reading().all() == [1]
    write(path, 2)
    for number in (3, 4):
        for older in sorted(tmp_path.glob("a.jsonl.*"), reverse=True):
            older.rename(tmp_path / f"a.jsonl.{int(older.suffix[1:]) + 1}")
        path.rename(tmp_path / "a.jsonl.1")
        write(path, number)
    write(tmp_path / "a.jsonlines", 9)
    assert reading().all() == [2, 3, 4]


def test_files_that_were_rotated_are_read_before_the_end_even_if_none_has_the_name(
    tmp_path: Path, reading: Any
) -> None:
    path = tmp_path / "a.jsonl"
    write(path, 1)
    assert reading().all() == [1]
    for number in (2, 3):
        path.rename(tmp_path / f"a.jsonl.{number}")
        write(path, number)
    path.rename(tmp_path / "a.jsonl.4")
    (tmp_path / "_DONE").touch()
    now = reading(until="_DONE")
    assert now.source.lag({"a.jsonl": now.offset}) == 2 * len('{"n": 2}\n')
    assert not now.source.ended({"a.jsonl": now.offset})
    assert now.all() == [2, 3]
    assert now.source.ended({"a.jsonl": now.offset})


def test_a_file_that_is_copied_and_truncated_is_read_to_its_end_in_the_copy(tmp_path: Path, reading: Any) -> None:
    path = tmp_path / "a.jsonl"
    write(path, 1, 2, 3)
    write(tmp_path / "b.jsonl", 1, 2, 9)
    assert reading().all(2) == [1, 2]
    shutil.copy(path, tmp_path / "a.jsonl.1")
    write(path, 4, mode="w")
    assert reading().all() == [3, 4]


def test_a_file_that_is_truncated_and_grows_again_is_no_other_place_in_the_old_one(
    tmp_path: Path, reading: Any
) -> None:
    path = tmp_path / "a.jsonl"
    write(path, 1, 2)
    assert reading().all() == [1, 2]
    write(path, 3, 4, 5, mode="w")
    with pytest.raises(SourceError, match="byte 18 is gone"):
        reading().all()


def test_lost_files_may_be_left_out(tmp_path: Path) -> None:
    path, reading = tmp_path / "a.jsonl", Reading(tmp_path, skip=True)
    write(path, 1, 2)
    assert reading.all(1) == [1]
    path.write_text('no json\n{"n": 3}\n')
    assert reading.all() == [3]


def test_a_file_that_is_removed_is_read_to_its_end_and_forgotten(tmp_path: Path) -> None:
    path, reading = tmp_path / "a.jsonl", Reading(tmp_path)
    write(path, 1, 2)
    assert reading.all(1) == [1]
    path.unlink()
    assert reading.all() == [2]
    assert reading.offset is None


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n[2]\n')
    with pytest.raises(SourceError, match="line at byte 10 is no JSON object") as caught:
        Reading(tmp_path).all()
    assert str(tmp_path / "a.jsonl") in str(caught.value)
    assert "skip: true" in caught.value.remedy


@pytest.mark.parametrize("line", [b'{"n": "\xff"}', b'{"\xff": 1}', b"[" * 100_000], ids=["value", "name", "nested"])
def test_a_line_that_is_no_text_or_too_deep_is_a_bad_line(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(line + b'\n{"n": 3}\n')
    with pytest.raises(SourceError, match="line at byte 0 is no JSON object"):
        Reading(tmp_path).all()
    assert Reading(tmp_path, skip=True).all() == [3]


def test_the_end_takes_a_last_line_without_an_end(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", 1, 2, end="")
    reading = Reading(tmp_path, until="end")
    assert reading.all() == [1, 2]
    assert reading.source.ended({"a.jsonl": reading.offset})


def test_a_long_line_is_read_and_an_endless_one_refused(tmp_path: Path) -> None:
    reading = Reading(tmp_path)
    (tmp_path / "a.jsonl").write_text(json.dumps({"n": 1, "text": "x" * 300_000}) + "\n")
    assert reading.all() == [1]
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.truncate(os.path.getsize(tmp_path / "a.jsonl") + (80 << 20))
    with pytest.raises(SourceError, match="longer than"):
        reading.all()


def test_the_mark_of_utf_8_may_begin_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(BOM_UTF8 + b'{"n": 1}\n' + BOM_UTF8 + b'{"n": 2}\n')
    assert Reading(tmp_path).all() == [1, 2]


@pytest.mark.parametrize("skip", [False, True])
def test_a_compressed_file_is_an_error_that_says_so(tmp_path: Path, skip: bool) -> None:
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b'{"n": 1}\n') + b"\n")
    with pytest.raises(SourceError, match="the file is compressed") as caught:
        Reading(tmp_path, skip=skip).all()
    assert caught.value.remedy.startswith("unpack it")
