"""Every kind of value comes back as it was; a header that lies is refused."""

from collections import OrderedDict
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.batch import Batch, Ragged, Shard, Shards
from rolemesh.errors import PluginError
from rolemesh_dataplane.codec import decode, encode, register_codec
from rolemesh_dataplane.transports import TransportError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=40)
NESTED = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


def there_and_back(value):
    header, buffers = encode(value)
    return decode(header, [memoryview(bytes(buffer)) for buffer in buffers])


@given(NESTED)
def test_plain_values_of_any_nesting_come_back(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.array(3.5),
        np.zeros((0, 3), np.int8),
        np.arange(20)[::3],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array([True, False]),
        np.array(["a", "bcd"]),
        np.array([b"x", b"yz"]),
        np.array(["2026-01-02"], "M8[D]"),
        np.array([1 + 2j]),
        np.arange(3, dtype=">i4"),
        np.random.default_rng(0).random((300, 40)),
        np.random.default_rng(0).random((300, 40)).T,
        np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        np.array([{"any": 1}], dtype=object),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_keep_dtype_shape_and_content(array):
    back = there_and_back(array)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert (back == array).all()


def test_arrays_are_read_only_views_of_the_buffers():
    header, buffers = encode(np.arange(10_000))
    raw = bytes(buffers[0])
    back = decode(header, [raw])
    assert not back.flags.writeable
    assert np.shares_memory(back, np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize(
    "value",
    [
        Batch({"a": np.arange(3), "b": ["x", "y", "z"], "c": Ragged.from_rows([[1], [], [2, 3]])}),
        Batch({}, rows=4),
        Ragged.from_rows([[1.5], [2.5, 3.5]]),
        Shard(np.ones((2, 3)), (4, 3), (2, 0)),
        Shards(w=Shard(np.ones((2, 3)), (4, 3), (2, 0)), b=Shard(np.zeros(1), (1,), (0,))),
        {"nested": [Batch({"a": np.arange(2)}), (np.float32(1.5), np.int64(3))]},
        b"x" * 100_000,
        OrderedDict(a=1),
        {(1, "a"): 2},
        2**90,
        "\ud800",
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_kernels_own_and_unknown_types_come_back(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_tensors_come_back_with_their_dtype_bfloat16_included():
    torch = pytest.importorskip("torch")
    for tensor in (
        torch.arange(6.0).reshape(2, 3).T,
        torch.ones(5, dtype=torch.bfloat16),
        torch.tensor(4),
        torch.empty(0, 7),
        torch.nn.Parameter(torch.ones(3)),
        torch.arange(1 << 19, dtype=torch.float32),
    ):
        back = there_and_back(tensor)
        assert back.dtype == tensor.dtype
        assert back.shape == tensor.shape
        assert torch.equal(back, tensor.detach())
        assert not back.requires_grad


def test_small_tensors_may_be_written_to_and_large_ones_warn_nobody(recwarn):
    torch = pytest.importorskip("torch")
    header, buffers = encode(torch.zeros(8))
    raw = bytes(buffers[0])
    decode(header, [raw]).add_(1)
    assert raw == bytes(32)
    there_and_back(torch.zeros(1 << 20))
    assert [str(w.message) for w in recwarn if "writable" in str(w.message)] == []


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y


def test_a_registered_type_travels_by_its_parts():
    register_codec(Point, "test.point", lambda p: [p.x, p.y], lambda parts: Point(*parts))
    back = there_and_back([Point(1, np.arange(3))])[0]
    assert (back.x, back.y.tolist()) == (1, [0, 1, 2])
    with pytest.raises(ValueError, match="taken by"):
        register_codec(int, "test.point", int, int)


def test_the_error_for_an_unknown_codec_has_a_remedy():
    with pytest.raises(TransportError, match="register_codec in the setup of the consumer"):
        decode(msgspec.msgpack.encode(["x", "nobody", None]), [])


def test_the_error_names_objects_that_cannot_be_pickled():
    with pytest.raises(PluginError, match=r"builtins\.function cannot be sent"):
        encode(lambda: None)


@pytest.mark.parametrize(
    ("tree", "buffers"),
    [
        (["n", "<f4", [3], 0], [b"x" * 8]),
        (["n", "<f4", [-1], 0], [b"x" * 8]),
        (["n", "|O", [1], 0], [b"x" * 8]),
        (["n", "<f4", [2], 1], [b"x" * 8]),
        (["n", "<f4", [2], -1], [b"x" * 8]),
        (["n", "nonsense", [2], 0], [b"x" * 8]),
        (["T", "load", [2], 0], [b"x" * 8]),
        (["T", "float32", [3], 0], [b"x" * 8]),
        (["B", 5, ["a"], [["n", "<f4", [2], 0]]], [b"x" * 8]),
        (["R", ["n", "<f4", [2], 0], ["n", "<i8", [1], 1]], [b"x" * 8, b"\x09" + bytes(7)]),
        (["p", 0, 3], [b"x"]),
        (["p", 0, 0], [b"not a pickle"]),
        (["?"], []),
        ([], []),
        ({"a": 1}, []),
        (["d", [1], []], []),
        (["l", [["n"]]], []),
        (["S", ["n", "<f4", [2], 0], [1], [0]], [b"x" * 8]),
    ],
)
def test_a_header_that_lies_is_refused(tree, buffers):
    pytest.importorskip("torch")
    with pytest.raises(TransportError):
        decode(msgspec.msgpack.encode(tree), buffers)


@given(st.binary(max_size=60))
def test_noise_is_refused_or_harmless(noise):
    with suppress(TransportError):
        decode(noise, [])
