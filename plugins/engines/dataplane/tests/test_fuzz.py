"""Changed bytes are refused with the declared error, and unpickle nothing that they did not announce."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolemesh.api.batch import Batch, Ragged, Shard, Shards
from rolemesh_checkpoint import disk, in_flight
from rolemesh_checkpoint.layout import BlockLayout, SnapshotError, flatten
from rolemesh_checkpoint.reading import StateFile
from rolemesh_dataplane import codec
from rolemesh_dataplane.transports import TransportError
from rolemesh_processes.ownership import owner_of

VALUES: list[Any] = [
    {"a": [1, 2, {"b": (3, "x", None)}]}, Batch({"x": np.arange(6), "t": ["a"] * 6}),
    Batch({"r": Ragged(np.arange(3), np.array([0, 1, 3]))}), np.float32(3), [b"x" * 5000, 1],
    Shard(np.zeros((2, 2)), (4, 2), (0, 0)), Shards({"w": Shard(np.zeros(2), (4,), (0,))}), complex(1, 2),
]  # fmt: skip
LEAVES = (
    st.none() | st.integers(-1, 3) | st.sampled_from(["p", b"p", 1.5, True, 2**40, "", "|S1", "(2,3", "1,f", "<f4"])
)
TAGS = st.sampled_from(["b", "n", "s", "T", "l", "t", "l*", "t*", "d", "B", "R", "S", "Z", "x", "p"])
TREES = st.recursive(
    LEAVES | st.builds(lambda tag, name: [tag, name, [1], 0], TAGS, LEAVES),
    lambda below: st.lists(below, max_size=3) | st.builds(lambda tag, rest: [tag, *rest], TAGS, st.lists(below)),
    max_leaves=12,
)
CHANGES = st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(max_size=8), st.integers(0, 8)), min_size=1, max_size=4)


def changed(data: bytes, changes: list[tuple[int, bytes, int]]) -> bytes:
    """Replace some bytes at each place by others."""
    for at, new, old in changes:
        at %= len(data) + 1
        data = data[:at] + new + data[at + old :]
    return data


def state_bytes(value: dict[str, Any]) -> bytes:
    flat = flatten(value, 0)
    head = BlockLayout.head({"step": 3, "log": -1, "tree": flat.tree})
    layout = BlockLayout(BlockLayout.key_of(flat.blocks), flat.blocks, len(head))
    return layout.header(head) + b"".join(np.ascontiguousarray(each.source).tobytes() for each in flat.blocks)


@pytest.fixture(scope="module")
def unpickled() -> Any:
    """The number of objects that the codec was about to unpickle. None is."""
    count = [0]

    class Never:
        def __getattr__(self, name: str) -> Any:
            return getattr(pickle, name)

        def loads(self, *data: Any, **more: Any) -> None:
            count[0] += 1
            raise ValueError("it would be unpickled")

    real, codec.pickle = codec.pickle, Never()  # type: ignore[assignment]
    yield count
    codec.pickle = real


@given(st.builds(changed, st.sampled_from([codec.encode(each)[0] for each in VALUES]), CHANGES)
       | st.builds(msgspec.msgpack.encode, TREES))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_a_header_of_a_value(unpickled: list[int], header: bytes) -> None:
    announced, before = codec.unpickles(header), unpickled[0]
    with contextlib.suppress(TransportError):
        codec.decode(header, [b"x" * 64] * 4)
    assert announced or unpickled[0] == before


def refused(read: Callable[[], Any]) -> None:
    with contextlib.suppress(SnapshotError):
        read()


STATE = state_bytes({"w": np.arange(4.0), "n": 2**70, "s": Shard(np.zeros(2), (4,), (0,)), "r": np.zeros(2, "M8[s]")})


@given(CHANGES)
@settings(max_examples=150, deadline=None)
def test_the_state_of_a_rank(changes: list[tuple[int, bytes, int]]) -> None:
    refused(lambda: StateFile(bytearray(changed(STATE, changes)), "x").state())


@given(CHANGES)
@settings(max_examples=100, deadline=None)
def test_the_records_in_flight_and_a_manifest(tmp_path_factory: Any, changes: list[tuple[int, bytes, int]]) -> None:
    folder: Path = tmp_path_factory.getbasetemp()
    head = msgspec.msgpack.encode(in_flight._Head(-1, 1, 0, False, True, (), -1, b"", (), "a/b", 1, b"body"))
    (folder / "edges").write_bytes(changed(b"rmedges1" + in_flight._FRAME.pack(len(head), 0) + head, changes) or b"x")
    refused(lambda: in_flight.read(folder, "edges"))
    manifest = disk._sealed(disk.Manifest("r", "x", 3, 4, {"trainer": 1}, {"trainer/a": (1, "0" * 64)}))
    (folder / disk.MANIFEST).write_bytes(changed(msgspec.json.encode(manifest), changes))
    refused(lambda: disk.read_manifest(folder))


@pytest.mark.parametrize("damage", [b'"\\ud800"', b"[", b"1", b'{"job": "\\udfff"}'])
def test_the_owner_of_a_folder(tmp_path: Path, damage: bytes) -> None:
    owner = (
        b'{"owner":"rolemesh","job":"a","part":"b","token":"t","pid":1,"start":2,"boot":"x","incarnation":0,"tmp":""}'
    )
    for data in (damage, owner.replace(b'"x"', damage), owner.replace(b'"t"', damage)):
        (tmp_path / ".owner").write_bytes(data)
        assert owner_of(tmp_path) is None or b"ud" not in data


def test_the_undeclared_errors_of_the_past() -> None:
    for tree in (["n", "(2,3", [1], 0], ["n", "1,f", [0], 0], ["S", None, [1], [0]], ["S", "x", [1], [0]]):
        with pytest.raises(TransportError):
            codec.decode(msgspec.msgpack.encode(tree), [b"x" * 64])
