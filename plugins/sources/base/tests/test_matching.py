"""Which files a pattern names: as Python's glob, which users know, but each file once."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest

from rolemesh_files.matching import matching


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with hidden files, a hidden folder, a linked folder and a broken link."""
    for name in ("a.jsonl", ".h.jsonl", "x.txt", ".ipynb_checkpoints/a.jsonl", "deep/er/b.jsonl", "deep/.c.jsonl"):
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).touch()
    (tmp_path / "real").mkdir()
    (tmp_path / "real/c.jsonl").touch()
    (tmp_path / "d/linked").symlink_to("../real")
    (tmp_path / "d/broken.jsonl").symlink_to("nowhere")
    return tmp_path / "d"


@pytest.mark.parametrize(
    "pattern",
    ["*.jsonl", "**/*.jsonl", "*/*.jsonl", ".*.jsonl", "**/.*.jsonl", ".ipynb_checkpoints/*", "**", "*/**/b.jsonl",
     "?.jsonl", "[!a].jsonl", "**/er/*"],
)  # fmt: skip
def test_a_pattern_names_what_pythons_glob_names(tree: Path, pattern: str) -> None:
    found = glob.glob(pattern, root_dir=tree, recursive=True)
    assert matching(tree, pattern) == sorted(name for name in found if (tree / name).is_file())


def test_links_in_a_circle_end(tree: Path) -> None:
    for name in ("around", "again"):
        (tree / "deep" / name).symlink_to("..")
    assert matching(tree, "**/*.jsonl") == ["a.jsonl", "deep/er/b.jsonl", "linked/c.jsonl"]


def test_a_file_with_two_names_is_listed_once_under_its_own(tree: Path) -> None:
    (tree / "0.jsonl").symlink_to("a.jsonl")
    (tree / "another").symlink_to("../real")
    assert matching(tree, "**/*.jsonl") == ["a.jsonl", "another/c.jsonl", "deep/er/b.jsonl"]
    assert matching(tree, "0.jsonl") == ["0.jsonl"]


def test_a_folder_that_is_missing_or_unreadable_has_no_files(tree: Path) -> None:
    assert matching(tree / "missing", "*.jsonl") == []
    os.chmod(tree / "deep", 0)
    try:
        assert "a.jsonl" in matching(tree, "**/*.jsonl")
    finally:
        os.chmod(tree / "deep", 0o755)


def test_files_that_spark_and_hadoop_leave_out_are_left_out(tmp_path: Path) -> None:
    for name in ("a.parquet", "_SUCCESS", "_metadata", "_temporary/0/b.parquet", "day=1/c.parquet", "_own/d.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert matching(tmp_path, "*") == ["a.parquet"]
    assert matching(tmp_path, "**/*.parquet") == ["a.parquet", "day=1/c.parquet"]
    assert matching(tmp_path, "_own/*") == ["_own/d.parquet"]
