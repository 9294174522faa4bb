"""Options travel without a change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rolemesh_runtime.carried import carried, uncarried

KEYS = st.text(max_size=3) | st.integers(-5, 5) | st.floats(allow_nan=False) | st.none() | st.booleans()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


class Inner(BaseModel):
    where: Path = Path("a")
    rate: float = math.inf


class Options(BaseModel):
    value: Any = None
    inner: Inner = Inner()
    weights: dict[int, float] = {}
    pair: tuple[float, Path] = (math.nan, Path("b"))


@given(VALUES)
def test_options_are_the_same_in_another_process(value: Any) -> None:
    options = Options(value=value, weights={0: math.inf, 3: 1.0})
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(carried(options)))
    assert repr(Options.model_validate(sent)) == repr(options)
    assert not list(uncarried(options.model_dump()["value"]))


@pytest.mark.parametrize(
    ("value", "path"),
    [(2**64, ()), ({"a": [0, -(2**63) - 1]}, ("a", 1)), ({"a": "\udce9"}, ("a",)), ({2**70: 1}, (2**70,))],
)
def test_a_value_that_cannot_travel_is_found_with_its_place(value: Any, path: tuple[Any, ...]) -> None:
    assert [found for found, *_ in uncarried(value)] == [path]
    with pytest.raises((OverflowError, UnicodeEncodeError)):
        msgspec.msgpack.encode(value)
