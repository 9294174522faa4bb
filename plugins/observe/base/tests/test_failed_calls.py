"""Saved calls come back as they were, within their limits; damaged and hostile files are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh import Batch
from rolemesh.api.batch import Ragged, Shard, Shards
from rolemesh_debug.describing import described
from rolemesh_debug.failed_calls import About, ReplayError, read, surplus, write
from rolemesh_debug.replay import inputs_of

ABOUT = About("job", "trainer", 0, 1, 7, "train", "ValueError: no", {})
MB = 1_000_000


class Odd:
    """A value that a state cannot hold."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


class Broken:
    """A value that cannot be looked at, as a tensor of a broken GPU."""

    dtype = "float32"

    @property
    def shape(self) -> Any:
        raise RuntimeError("CUDA error")


def saved(tmp_path: Path, inputs: dict[str, Any], most: int = MB) -> Path:
    path = tmp_path / "failures" / "f.safetensors"
    write(path, ABOUT, inputs, most)
    return path


def test_inputs_come_back_as_a_rank_receives_them(tmp_path: Path) -> None:
    batch = Batch({"ids": Ragged.from_rows([[1, 2], [3]]), "text": ["<b>", "ü"], "x": np.ones((2, 3), np.float32)})
    inputs = {"batch": batch, "rate": 0.1, "name": "\udcff", "weights": Shards({"w": Shard(np.ones(4), (8,), (4,))})}
    path = saved(tmp_path, inputs)
    found = inputs_of(read(path), path, trusted=False)
    assert found["batch"]["ids"] == batch["ids"]
    assert found["batch"]["text"] == batch["text"]
    assert not found["batch"]["x"].flags.writeable
    assert (found["rate"], found["name"]) == (0.1, "\udcff")
    assert isinstance(found["weights"], Shards)
    assert found["weights"]["w"].offsets == (4,)


def test_a_value_of_another_type_is_unpickled_only_if_it_is_trusted(tmp_path: Path) -> None:
    path = saved(tmp_path, {"odd": Odd()})
    with pytest.raises(ReplayError, match="odd can only be read by unpickling"):
        inputs_of(read(path), path, trusted=False)
    assert inputs_of(read(path), path, trusted=True) == {"odd": Odd()}


def test_inputs_beyond_the_limit_and_streams_are_missing_with_a_reason(tmp_path: Path) -> None:
    path = saved(tmp_path, {"large": np.zeros(MB), "stream": iter([1]), "small": 1})
    call = read(path)
    assert call.values == {"small": 1}
    assert set(call.about.missing) == {"large", "stream"}
    with pytest.raises(ReplayError, match=r"large: it has 8\.0 MB"):
        inputs_of(call, path, trusted=False)


@pytest.mark.parametrize("cut", [0, 7, 100, 600])
def test_a_damaged_file_is_an_error(tmp_path: Path, cut: int) -> None:
    path = saved(tmp_path, {"x": np.zeros(100)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ReplayError):
        read(path)


def test_the_oldest_files_make_room_unless_they_are_young() -> None:
    files = [(1.0, "a"), (2.0, "b"), (1000.0, "c")]
    assert surplus(files, "new", 4, 1000.0) == []
    assert surplus(files, "new", 2, 1000.0) == ["a", "b"]
    assert surplus(files, "new", 1, 1000.0) is None
    assert surplus(files, "b", 3, 1000.0) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Batch({"v": np.array([3, 4])}), "Batch of 2 rows (v: int64 [2], 3…4)"),
        (np.array([1.0, np.nan, np.inf]), "float64 [3], 1 NaN (first in row 1), 1 infinite (first in row 2)"),
        (np.array([[1.0, 1.0], [1.0, np.nan]], "f4"), "float32 [2, 2], 1 NaN (first in row 1)"),
        (Ragged.from_rows([[1], [1, 1]]), "ragged int64, 3 in 2 rows, all 1"),
        ({"a": None, "b": [1, "x"]}, "mapping of 2 (a: None; b: list of 2 int or str)"),
        ("x" * 100, f"'{'x' * 60}'…"),
        (iter([]), "stream"),
        (Broken(), "Broken (cannot be read: RuntimeError)"),
    ],
)
def test_a_value_is_described_by_what_matters(value: Any, text: str) -> None:
    assert described(value) == text
