"""Changed inputs: bytes at some places, and values at some places of what the bytes mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

__all__ = ["FORMS", "changed_bytes", "inputs"]


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ODD: Final[Sequence[Any]] = (
    None, True, False, 0, 1, -1, 7, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 0.5, -0.0, 1e308, "", "x", "0",
    "a/b", "../../x", ".", "\x00", "é", "nan", "a" * 3000, "[" * 1500, [], {}, [[]], [None], {"": None},
    [1, 2, 3], {"x": 1}, _nested(400),
)  # fmt: skip
"""Values that have confused decoders."""
DEEPEST = 50
"""Maximum depth of a place that is changed."""
TOKENS: Final[Sequence[bytes]] = (
    b"\\ud800", b"\\u003a", b"9" * 5000, b"-0", b"1e999", b"NaN", b"[" * 1500, b'{"":' * 1500, b"\xff", b"\x91" * 1500,
    b"!!int ", b"!!float ", b"!!timestamp ", b"!!binary ", b"!!set ", b"!!python/name:os.system ", b"&a ", b"*a",
    b"<<: ", b"2001-99-99", b"1:99:99", b"0o8", b"? ", b"- ", b"\t", b"---\n", b"%YAML 9.9\n",
    b"${A", b"${A:-x}", b"[&a [*a]]",
)  # fmt: skip
"""Pieces of bytes that have confused decoders of JSON, msgpack and YAML."""
CHANGE = st.tuples(st.integers(0, 1 << 20), st.binary(max_size=8) | st.sampled_from(TOKENS), st.integers(0, 8))
EDIT = st.tuples(
    st.integers(0, 1 << 12), st.sampled_from(["put", "drop", "double", "name"]), st.sampled_from(range(len(ODD)))
)


def changed_bytes(data: bytes, changes: Sequence[tuple[int, bytes, int]]) -> bytes:
    """Replace some bytes at each place by others."""
    for at, new, old in changes:
        at %= len(data) + 1
        data = data[:at] + new + data[at + old :]
    return data


def edited(value: Any, edits: Sequence[tuple[int, str, int]]) -> Any:
    """Change the value at each place: put another one, drop it, double it, or give its key another name."""
    box = [value]
    for place, how, odd in edits:
        places = list(_places(box))
        inside, key = places[place % len(places)]
        if how == "put" or inside is box:
            inside[key] = deepcopy(ODD[odd])
        elif how == "drop":
            del inside[key]
        elif isinstance(inside, list):
            inside.insert(key, inside[key])
        else:
            inside[str(ODD[odd])[:50] if how == "name" else f"{key}2"] = inside.pop(key)
    return box[0]


def _places(inside: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    for key, below in list(enumerate(inside) if isinstance(inside, list) else inside.items()):
        yield inside, key
        if isinstance(below, list | dict) and depth < DEEPEST:
            yield from _places(below, depth + 1)


def _json(data: bytes) -> Any:
    return json.loads(data)


def _msgpack(data: bytes) -> Any:
    return msgspec.msgpack.decode(data)


FORMS: Final[dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]]] = {
    "json": (_json, lambda value: json.dumps(value, separators=(",", ":")).encode()),
    "msgpack": (_msgpack, msgspec.msgpack.encode),
    "lines": (
        lambda data: [json.loads(line) for line in data.splitlines()],
        lambda value: b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in _listed(value)),
    ),
}
"""How the bytes of a form become a value, and back."""


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def inputs(seeds: Sequence[bytes], form: str, sealed: Callable[[bytes], bytes]) -> st.SearchStrategy[bytes]:
    """Return changed `seeds`; `sealed` renews the checksums of some, so that the decoder looks behind them."""
    kinds = [st.builds(changed_bytes, st.sampled_from(seeds), st.lists(CHANGE, min_size=1, max_size=4))]
    if form in FORMS:
        read, written = FORMS[form]

        def edit(seed: bytes, edits: list[tuple[int, str, int]]) -> bytes:
            return written(edited(read(seed), edits))

        kinds += [st.builds(edit, st.sampled_from(seeds), st.lists(EDIT, min_size=1, max_size=3))] * 3
    any_kind = st.one_of(*kinds, st.binary(max_size=64))
    return st.one_of(any_kind, any_kind.map(sealed))
