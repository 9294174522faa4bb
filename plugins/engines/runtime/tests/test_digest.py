"""Equal states have equal digests, different ones different, in whatever order they were filled."""

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Ragged, Shard
from rolemesh_runtime.digest import digest


def test_the_order_of_names_does_not_matter():
    a, b = np.arange(3), {"y": 1, "x": [1.5, "t", None, b"b"]}
    assert digest({"a": a, "b": b}) == digest({"b": dict(reversed(b.items())), "a": a.copy()})


def test_layout_in_memory_does_not_matter():
    array = np.arange(6).reshape(2, 3)
    assert digest({"a": array}) == digest({"a": np.asfortranarray(array)})


@pytest.mark.parametrize(
    "other",
    [
        {"a": np.zeros(4, np.float64)},
        {"a": np.zeros((2, 2), np.float32)},
        {"a": np.array([0, 0, 0, 1e-45], np.float32)},
        {"b": np.zeros(4, np.float32)},
        {"a": np.zeros(4, np.float32), "c": None},
        {"a": [0.0] * 4},
        {"a": bytes(16)},
        {"a": Shard(np.zeros(4, np.float32), (8,), (4,))},
        {"a": Ragged.from_rows([[0.0] * 4])},
        {"a": Batch({"a": np.zeros(4, np.float32)})},
    ],
)
def test_every_difference_shows(other):
    assert digest({"a": np.zeros(4, np.float32)}) != digest(other)


def test_parts_cannot_flow_into_each_other():
    assert digest({"a": ["ab", "c"]}) != digest({"a": ["a", "bc"]})
    assert digest({"a": [1, 2], "b": []}) != digest({"a": [1], "b": [2]})


def test_tensors_have_digests_of_their_dtype_and_bytes():
    torch = pytest.importorskip("torch")
    ones = torch.ones(3, dtype=torch.bfloat16)
    assert digest({"w": ones}) == digest({"w": torch.nn.Parameter(ones.clone())})
    assert digest({"w": ones}) != digest({"w": ones.to(torch.float16)})


def test_an_object_without_bytes_is_named_with_its_path():
    with pytest.raises(TypeError, match=r"state\['opt'\]\[1\] is a object"):
        digest({"opt": [1, object()]})
