"""Shards of the source `files`: each row once, as pyarrow and webdataset read them, and what is wrong with a shard."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, ipc, parquet

from rolemesh_files import FilesOptions, FilesSource
from rolemesh_files import shards as module
from rolemesh_sources import Reader, SourceError
from rolemesh_testing import SourceConformance, override

ROWS = [{"n": n, "text": f"row {n}", "tags": [n, n + 1], "raw": bytes([n % 256])} for n in range(500)]


def parquet_file(path: Path, rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    parquet.write_table(pa.Table.from_pylist([*rows]), path, row_group_size=120, **more)


def arrow_file(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    table = pa.Table.from_pylist([*rows])
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)


def arrow_stream(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    table = pa.Table.from_pylist([*rows])
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)


def feather_file(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    feather.write_feather(pa.Table.from_pylist([*rows]), path, chunksize=90)


def members(path: Path, found: Iterable[tuple[str, bytes]], **options: Any) -> None:
    with tarfile.open(path, "w", **options) as tar:
        for name, data in found:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def tar_file(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    found = []
    for number, row in enumerate(rows):
        found += [
            (f"{number:05}.json", json.dumps({"n": row["n"]}).encode()),
            (f"{number:05}.raw.BIN", b"%d" % row["n"]),
        ]
    members(path, found)


WRITERS: dict[str, Callable[[Path, Sequence[Mapping[str, Any]]], None]] = {
    "a.parquet": parquet_file,
    "a.arrow": arrow_file,
    "stream.arrow": arrow_stream,
    "a.feather": feather_file,
    "a.tar": tar_file,
}


def opened(base: Path, path: str = "*", **options: Any) -> FilesSource:
    source = FilesSource(FilesOptions(path=path, scan_s=0, **options))
    source.open(Reader("job", "data", 0, 1, str(base)))
    return source


def read(base: Path, name: str, most: int = 7, offset: Any = None, again: bool = False, **options: Any) -> list[Any]:
    """Read a shard from `offset` to its end, with a new source for each read if `again`."""
    source, found = opened(base, **options), list[Any]()
    while True:
        got = source.read(name, offset, most)
        found += got.rows
        if got.offset == offset:
            assert source.ended({name: offset}) or not options.get("until")
            source.close()
            return found
        offset = json.loads(json.dumps(got.offset))
        if again:
            source.close()
            source = opened(base, **options)


def fails(base: Path, name: str, **options: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        read(base, name, **options)
    assert str(base / name) in str(caught.value.where)
    assert caught.value.remedy
    return caught.value


class Shards(SourceConformance):
    """A partition of a shard is whole when it comes, so rows that are added later are in another one."""

    plugin = "files"

    def finish(self, base: Path) -> None:
        (base / "data/_DONE").touch()

    @override("nobody adds rows to a shard")
    def test_later_records_are_read(self, opened: Any, base: Path) -> None:
        self.add(base, 0, [{"n": 0}])
        source, position = opened(), dict[str, Any]()
        assert list(self.read(source, position, 1).values()) == [[{"n": 0}]]
        self.add(base, 1, [{"n": 2}])
        assert list(self.read(source, position, 1).values()) == [[{"n": 2}]]

    @override("nobody adds rows to a shard")
    def test_the_same_offset_gives_the_same_records_again(self, opened: Any, base: Path) -> None:
        self.add(base, 0, [{"n": n} for n in range(6)])
        source, position = opened(), dict[str, Any]()
        self.read(source, position, 2)
        before = dict(position)
        rest = self.read(source, position, 4)
        for again in (source, opened()):
            assert self.read(again, dict(before), 4) == rest


class TestParquet(Shards):
    options = {"path": "data/*.parquet", "until": "_DONE", "scan_s": 0}
    bad_options = ({"columns": []}, {"format": "orc"})

    def add(self, base: Path, partition: int, rows: Sequence[Any]) -> None:
        (base / "data").mkdir(exist_ok=True)
        parquet_file(base / f"data/{partition}.parquet", rows)


# ------------------------------------------------------------------------------------- the readers of the formats


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow", "a.feather"])
@pytest.mark.parametrize("again", [False, True], ids=["goes on", "restarted"])
def test_each_row_comes_once_as_pyarrow_reads_it(tmp_path: Path, name: str, again: bool) -> None:
    WRITERS[name](tmp_path / name, ROWS)
    assert read(tmp_path, name, 37 if again else 7, again=again, until="end") == ROWS
    assert read(tmp_path, name, columns=["tags", "n"]) == [{"tags": row["tags"], "n": row["n"]} for row in ROWS]


@pytest.mark.skipif(find_spec("webdataset") is None, reason="NO WEBDATASET: pip install webdataset")
@pytest.mark.parametrize("again", [False, True], ids=["goes on", "restarted"])
@pytest.mark.parametrize("options", [{}, {"format": tarfile.PAX_FORMAT}, {"format": tarfile.GNU_FORMAT}])
def test_each_sample_comes_once_as_webdataset_reads_it(tmp_path: Path, again: bool, options: dict[str, Any]) -> None:
    from webdataset import WebDataset

    rng, found = random.Random(3), [("__meta__", b"x"), ("no-extension", b"x"), ("__dir__/a.jpg", b"x")]
    for n in range(120):
        key = f"{'long/' * rng.randrange(40)}dir.{n % 3}/sample {n}é"
        found += [
            (f"{key}.{each}", rng.randbytes(rng.randrange(2000))) for each in ("JPG", "seg.png", "json")[: n % 4 or 3]
        ]
    members(tmp_path / "a.tar", found, **options)
    names = ("__url__", "__local_path__")
    there = [
        {name: value for name, value in sample.items() if name not in names}
        for sample in WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)
    ]
    assert read(tmp_path, "a.tar", 3, again=again, until="end") == there
    assert len(there) == 120
    with_key = read(tmp_path, "a.tar", columns=["jpg", "__key__"])
    assert with_key == [{"jpg": each["jpg"], "__key__": each["__key__"]} for each in there]


@pytest.mark.parametrize("name", WRITERS)
def test_a_rank_goes_on_in_the_middle_of_a_copied_shard(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, ROWS)
    whole = read(tmp_path, name)
    assert len(whole) == 500
    source = opened(tmp_path)
    offset = source.read(name, None, 333).offset
    assert 0 < source.lag({name: offset}) < (tmp_path / name).stat().st_size
    source.close()
    shutil.copyfile(tmp_path / name, tmp_path / "copy")
    (tmp_path / "copy").replace(tmp_path / name)
    assert read(tmp_path, name, offset=offset) == whole[333:]


def test_json_lines_and_shards_may_lie_beside_each_other_and_lines_have_chosen_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "x": 2}\n{"x": 3}\n')
    parquet_file(tmp_path / "b.parquet", [{"n": 5, "x": 6}])
    source = opened(tmp_path, columns=["n"], until="end")
    assert list(source.partitions()) == ["a.jsonl", "b.parquet"]
    assert source.read("a.jsonl", None, 9).rows == [{"n": 1}, {}]
    assert source.read("b.parquet", None, 9).rows == [{"n": 5}]


def test_a_format_may_be_given_for_files_with_other_names(tmp_path: Path) -> None:
    parquet_file(tmp_path / "part-00000", ROWS[:3])
    assert read(tmp_path, "part-00000", format="parquet") == ROWS[:3]


def test_numbered_shards_are_shared_out_evenly(tmp_path: Path) -> None:
    names = [f"train-{n:05}-of-00016.parquet" for n in range(16)]
    ranks = [opened(tmp_path).rank_of(name, 4) for name in names]
    assert sorted(ranks) == sorted([0, 1, 2, 3] * 4)


def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    """A page of a column and a batch are in memory, and not the whole row group of 64 MB."""
    table = pa.table({"raw": [bytes(2040) + b"%08d" % n for n in range(1 << 15)]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1 << 15, compression="none", use_dictionary=False)
    del table
    before = pa.total_allocated_bytes()
    source, offset, most, count = opened(tmp_path), None, 0, 0
    while (got := source.read("a.parquet", offset, 512)).offset != offset:
        offset, count = got.offset, count + len(got.rows)
        most = max(most, pa.total_allocated_bytes() - before)
    source.close()
    assert count == 1 << 15
    assert most < 16 << 20


def test_a_read_of_large_samples_returns_before_it_has_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 5000)
    members(tmp_path / "a.tar", ((f"{n}.bin", bytes(2000)) for n in range(10)))
    source = opened(tmp_path)
    got = source.read("a.tar", None, 100)
    assert len(got.rows) == 3
    assert len(source.read("a.tar", got.offset, 100).rows) == 3
    source.close()


# ------------------------------------------------------------------------------------------------- hostile shards


@pytest.mark.parametrize("name", WRITERS)
def test_an_empty_file_is_an_error_and_a_shard_without_rows_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert "is empty" in fails(tmp_path, name).what
    if name != "a.tar":
        table = pa.table({"n": pa.array([], pa.int64())})
        if "parquet" in name:
            parquet.write_table(table, tmp_path / name)
        else:
            with ipc.new_file(tmp_path / name, table.schema) as writer:
                writer.write_table(table)
    else:
        members(tmp_path / name, [])
    assert read(tmp_path, name, until="end") == []


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_a_truncated_shard_is_an_error(tmp_path: Path, name: str, share: float) -> None:
    WRITERS[name](tmp_path / name, ROWS)
    os.truncate(tmp_path / name, int((tmp_path / name).stat().st_size * share))
    assert "rename it when it is complete" in fails(tmp_path, name).remedy


def test_a_stream_that_ends_between_batches_is_truncated_too(tmp_path: Path) -> None:
    arrow_stream(tmp_path / "a.arrow", ROWS)
    data = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(data.removesuffix(module.END))
    assert "truncated" in fails(tmp_path, "a.arrow").what


@pytest.mark.parametrize("at", [0, 512, 1024, 1536])
def test_a_tar_file_that_ends_between_members_is_truncated_too(tmp_path: Path, at: int) -> None:
    members(tmp_path / "a.tar", [("1.a", b"1"), ("1.b", b"2"), ("2.a", b"3"), ("2.b", b"4")])
    os.truncate(tmp_path / "a.tar", 2048 + at)
    assert "truncated or damaged" in fails(tmp_path, "a.tar").what
    whole = [{"__key__": "1", "a": b"1", "b": b"2"}]
    assert read(tmp_path, "a.tar", skip=True) == (whole if at >= 1024 else [])


def test_a_damaged_header_is_no_end(tmp_path: Path) -> None:
    members(tmp_path / "a.tar", [("1.a", b"1"), ("2.a", b"2"), ("3.a", b"3")])
    with (tmp_path / "a.tar").open("r+b") as file:
        file.seek(1024)
        file.write(b"\xff" * 512)
    assert "truncated or damaged" in fails(tmp_path, "a.tar").what


@pytest.mark.parametrize(
    ("name", "said"),
    [("../x.jpg", "leads out"), ("/etc/x.jpg", "leads out"), ("a/../../x.jpg", "leads out"), ("1.a", "twice")],
)
def test_a_bad_member_is_named_and_may_be_left_out(tmp_path: Path, name: str, said: str) -> None:
    members(tmp_path / "a.tar", [("1.a", b"1"), (name, b"9"), ("2.a", b"2")])
    error = fails(tmp_path, "a.tar")
    assert said in error.what
    assert "skip: true" in error.remedy
    assert read(tmp_path, "a.tar", skip=True) == [{"__key__": "1", "a": b"1"}, {"__key__": "2", "a": b"2"}]


def test_a_member_that_would_replace_the_key_is_named(tmp_path: Path) -> None:
    members(tmp_path / "a.tar", [("1.__key__", b"9"), ("1.a", b"1")])
    assert "'1' has the member .__key__ twice" in fails(tmp_path, "a.tar").what


def test_a_member_that_claims_to_be_huge_takes_no_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("1.bin")
    info.size = 8 << 30
    (tmp_path / "a.tar").write_bytes(info.tobuf() + bytes(1024))
    tracemalloc.start()
    fails(tmp_path, "a.tar")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_a_shard_that_changes_while_the_job_runs_is_an_error(
    tmp_path: Path, name: str, restarted: bool, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_S", 0)
    WRITERS[name](tmp_path / name, ROWS)
    source = opened(tmp_path)
    offset = source.read(name, None, 9999 if ended else 10).offset
    if restarted:
        source.close()
        source = opened(tmp_path)
    WRITERS[name](tmp_path / "new", [{**row, "n": row["n"] + 1} for row in ROWS])
    (tmp_path / "new").replace(tmp_path / name)
    with pytest.raises(SourceError, match=r"has changed since its first (10|500) records were read") as caught:
        source.read(name, offset, 10)
    assert str(tmp_path / name) in str(caught.value.where)
    source.close()


@pytest.mark.parametrize("name", WRITERS)
def test_a_shard_may_be_removed_once_it_is_read(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_S", 0)
    (tmp_path / "data").mkdir()
    WRITERS[name](tmp_path / "data" / name, ROWS)
    source = opened(tmp_path, "data/*")
    middle, end = (source.read(name, None, count).offset for count in (10, 9999))
    source.close()
    (tmp_path / "data" / name).unlink()
    source = opened(tmp_path, "data/*")
    assert source.read(name, end, 10).offset is None
    with pytest.raises(SourceError, match="was removed after 10 of its records"):
        source.read(name, middle, 10)
    assert opened(tmp_path, "data/*", skip=True).read(name, middle, 10).offset is None
    (tmp_path / "data").rmdir()
    with pytest.raises(SourceError, match="the folder of the files is gone"):
        source.read(name, end, 10)


@pytest.mark.parametrize(
    ("column", "said"),
    [({"n": 1.5}, "column 'n' is a float, but in a.parquet it is an integer"), ({"m": 1}, "column '[mn]' is")],
)
def test_shards_with_other_columns_are_an_error(tmp_path: Path, column: dict[str, Any], said: str) -> None:
    parquet_file(tmp_path / "a.parquet", [{"n": 1, "x": "y"}])
    parquet_file(tmp_path / "b.parquet", [{"x": "y", **column}])
    source = opened(tmp_path)
    source.read("a.parquet", None, 1)
    with pytest.raises(SourceError, match=said) as caught:
        source.read("b.parquet", None, 1)
    assert str(tmp_path / "b.parquet") in str(caught.value.where)
    assert "option columns" in caught.value.remedy
    source = opened(tmp_path, columns=["x"])
    assert [source.read(f"{name}.parquet", None, 1).rows for name in "ab"] == [[{"x": "y"}]] * 2
    assert "no column 'z'" in fails(tmp_path, "a.parquet", columns=["z"]).what


def test_widths_and_encodings_of_columns_may_differ(tmp_path: Path) -> None:
    for name, number, text in (
        ("a", pa.int32(), pa.string()),
        ("b", pa.int64(), pa.dictionary(pa.int8(), pa.string())),
    ):
        table = pa.table({"n": pa.array([1], number), "text": pa.array(["x"], text)})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    source = opened(tmp_path)
    assert [source.read(f"{name}.parquet", None, 1).rows for name in "ab"] == [[{"n": 1, "text": "x"}]] * 2


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet_file(tmp_path / "a.parquet", ROWS[:1])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert fails(tmp_path, "a.parquet").remedy == "pip install 'rolemesh-sources[arrow]'"


NS = pa.timestamp("ns")
ALIKE = [
    (pa.array([1, 2]), pa.array([None, None])),
    (pa.array([["a"], ["b"]]), pa.array([[], []])),
    (pa.array([[1], [2]]), pa.array([[3], None], pa.large_list(pa.field("element", pa.int16())))),
    (pa.array([{"x": 1}, None]), pa.array([{"x": None}, {"x": None}])),
    (pa.array([1, 2], pa.timestamp("s")), pa.array([3_000, 4_000], NS)),
    (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), pa.array([[], []], pa.map_(pa.string(), pa.null()))),
]


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=lambda column: str(column.type))
def test_columns_with_alike_values_may_have_other_types_in_other_shards(
    tmp_path: Path, one: pa.Array, other: pa.Array
) -> None:
    """An empty list and a column of nulls have no type of their own, and writers name a list's items as they like."""
    for first, second in ((one, other), (other, one)):
        for name, column in (("a.parquet", first), ("b.parquet", second)):
            parquet.write_table(pa.table({"c": column}), tmp_path / name)
        source = opened(tmp_path)
        found = [row["c"] for name in ("a.parquet", "b.parquet") for row in source.read(name, None, 9).rows]
        assert found == first.to_pylist() + second.to_pylist()
        source.close()


def test_a_type_that_only_a_third_shard_shows_must_be_that_of_the_second(tmp_path: Path) -> None:
    for name, column in (("a", [[]]), ("b", [["x"]]), ("c", [[1]])):
        parquet.write_table(pa.table({"c": column}), tmp_path / f"{name}.parquet")
    source = opened(tmp_path)
    for name in ("a.parquet", "b.parquet"):
        source.read(name, None, 9)
    with pytest.raises(SourceError, match=r"'c' is a list \(an integer\), but in a.parquet it is a list \(text\)"):
        source.read("c.parquet", None, 9)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_nanoseconds_become_pythons_microseconds(tmp_path: Path, name: str) -> None:
    """As pandas does, if it is installed."""
    at, struct = 1_795_000_000_123_456_789, pa.struct([("at", pa.timestamp("ns", "UTC"))])
    columns = {
        "at": pa.array([at, None], NS),
        "of_day": pa.array([1_999, None], pa.time64("ns")),
        "took": pa.array([[1_999], None], pa.list_(pa.duration("ns"))),
        "deep": pa.array([{"at": at}, None], struct),
    }
    if name == "a.parquet":
        parquet.write_table(pa.table(columns), tmp_path / name)
    else:
        with ipc.new_file(tmp_path / name, (table := pa.table(columns)).schema) as writer:
            writer.write_table(table)
    row, nothing = read(tmp_path, name)
    there = datetime(2026, 11, 18, 11, 6, 40, 123456)
    assert row["at"] == there
    assert row["deep"]["at"] == there.replace(tzinfo=UTC)
    assert (row["of_day"], row["took"]) == (time(0, 0, 0, 1), [timedelta(microseconds=1)])
    assert set(nothing.values()) == {None}


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_of_json_have_the_values_that_they_stand_for(tmp_path: Path, name: str) -> None:
    """As `datasets.Json` writes them."""
    texts = pa.array(['{"x":1}', '"text"', None, "[1, null]"])
    table = pa.table({"a": pa.ExtensionArray.from_storage(pa.json_(), texts), "text": texts})
    if name == "a.parquet":
        parquet.write_table(table, tmp_path / name)
    else:
        with ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    rows = read(tmp_path, name)
    assert [row["a"] for row in rows] == [{"x": 1}, "text", None, [1, None]]
    assert [row["text"] for row in rows] == texts.to_pylist()


def test_a_column_of_json_that_is_none_is_named(tmp_path: Path) -> None:
    broken = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{"]))
    parquet.write_table(pa.table({"a": broken}), tmp_path / "a.parquet")
    assert "a value of column 'a' is none of Python" in fails(tmp_path, "a.parquet").what


def test_a_column_that_is_there_twice_is_named_and_others_can_be_read(tmp_path: Path) -> None:
    arrays = [pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])]
    parquet.write_table(pa.Table.from_arrays(arrays, names=["a", "a", "b"]), tmp_path / "a.parquet")
    assert "several columns 'a'" in fails(tmp_path, "a.parquet").what
    assert read(tmp_path, "a.parquet", columns=["b"]) == [{"b": 5}, {"b": 6}]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 2**62], pa.timestamp("us")),
        pa.array([0, 10**7], pa.date32()),
        pa.array([0, 2**50], pa.duration("s")),
        pa.array([0, 1], pa.timestamp("us", "Mars/Phobos")),
        pa.array([b"a", b"\xff"]).view(pa.string()),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_value_that_python_has_not_is_an_error_with_its_column(tmp_path: Path, name: str, column: pa.Array) -> None:
    table = pa.table({"n": pa.array([1, 2]), "c": column})
    if name == "a.parquet":
        parquet.write_table(table, tmp_path / name)
    else:
        with ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    error = fails(tmp_path, name)
    assert "a value of column 'c' is none of Python" in error.what
    assert "columns" in error.remedy
    assert read(tmp_path, name, columns=["n"]) == [{"n": 1}, {"n": 2}]


@pytest.fixture
def gnu_tar(tmp_path: Path) -> Callable[..., None]:
    """``gnu_tar(*arguments)``: GNU tar writes ``a.tar`` with files of a folder."""
    (folder := tmp_path / "files").mkdir()
    for name in ("1.a", "2.a"):
        (folder / name).write_text(name)
    return lambda *arguments: subprocess.run(["tar", "-C", folder, "-cf", tmp_path / "a.tar", *arguments], check=True)


def test_a_file_with_holes_comes_whole(tmp_path: Path, gnu_tar: Callable[..., None]) -> None:
    with (tmp_path / "files/1.hole").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    gnu_tar("--sparse", "1.hole", "2.a")
    first, second = read(tmp_path, "a.tar")
    assert first["hole"] == bytes(1 << 20) + b"end"
    assert second == {"__key__": "2", "a": b"2.a"}


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_member_that_is_a_link_is_named_and_may_be_left_out(
    tmp_path: Path, gnu_tar: Callable[..., None], link: Callable[[Path, Path], None]
) -> None:
    """GNU tar makes one of the second name of a file."""
    link(tmp_path / "files/1.a", tmp_path / "files/3.a")
    gnu_tar("1.a", "2.a", "3.a")
    assert "'3.a' is a link" in fails(tmp_path, "a.tar").what
    assert [row["__key__"] for row in read(tmp_path, "a.tar", skip=True)] == ["1", "2"]
    gnu_tar("--dereference", "--hard-dereference", "1.a", "2.a", "3.a")
    assert read(tmp_path, "a.tar")[2] == {"__key__": "3", "a": b"1.a"}


def test_two_tar_files_in_one_are_an_error_and_one_that_tar_appended_to_is_not(
    tmp_path: Path, gnu_tar: Callable[..., None]
) -> None:
    gnu_tar("1.a")
    one = (tmp_path / "a.tar").read_bytes()
    subprocess.run(["tar", "-C", tmp_path / "files", "-rf", tmp_path / "a.tar", "2.a"], check=True)
    assert [row["__key__"] for row in read(tmp_path, "a.tar")] == ["1", "2"]
    (tmp_path / "a.tar").write_bytes(one + one)
    assert "as after cat a.tar b.tar" in fails(tmp_path, "a.tar").what
    assert [row["__key__"] for row in read(tmp_path, "a.tar", skip=True)] == ["1"]


@pytest.mark.parametrize("method", ["gz", "bz2", "xz"])
def test_a_compressed_tar_file_is_an_error_that_says_so(tmp_path: Path, method: str) -> None:
    with tarfile.open(tmp_path / "a.tar", f"w:{method}") as tar:
        tar.add(__file__, "a.py")
    assert "is compressed" in fails(tmp_path, "a.tar").what


@pytest.mark.parametrize("at", [0, 1, 2])
def test_members_of_a_sample_that_are_apart_are_an_error_from_any_row_on(tmp_path: Path, at: int) -> None:
    """The specification of WebDataset demands that they follow one another: https://github.com/webdataset/webdataset"""
    members(tmp_path / "a.tar", [(name, b"x") for name in ("0.a", "1.a", "2.a", "0.b")])
    source, offset = opened(tmp_path, "*.tar"), None
    for _ in range(at):
        offset = source.read("a.tar", offset, 1).offset
    source.close()
    later = opened(tmp_path, "*.tar")
    for _ in range(at, 2):
        offset = later.read("a.tar", offset, 1).offset
    with pytest.raises(SourceError, match="'0' are apart") as caught:
        later.read("a.tar", offset, 2)
    assert "tar --sort=name" in caught.value.remedy


def test_spark_and_hives_times_are_those_that_were_written(tmp_path: Path) -> None:
    """Their INT96 reaches further than nanoseconds in 64 bits, which pyarrow reads by default."""
    times = [datetime(1500, 1, 1), datetime(2026, 1, 2, 3, 4, 5, 6), datetime(9999, 12, 23, 23, 59, 59)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us"))})
    parquet.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert [row["t"] for row in read(tmp_path, "a.parquet")] == times


def test_shards_that_are_read_in_turns_have_each_sample_once(tmp_path: Path) -> None:
    """More than are open at once, so that each is opened again in its middle."""
    names = [f"{shard:02}.tar" for shard in range(module.Shards.MOST + 2)]
    for name in names:
        members(tmp_path / name, [(f"{number}.a", b"x") for number in range(3)])
    source, offsets, keys = opened(tmp_path, "*.tar"), dict.fromkeys(names), []
    for _ in range(3):
        for name in names:
            found = source.read(name, offsets[name], 1)
            offsets[name] = found.offset
            keys += [row["__key__"] for row in found.rows]
    assert keys == [str(number) for number in range(3) for _ in names]
