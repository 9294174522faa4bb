"""How many ranks a role has: a number, or for an elastic role the least and the most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticKnownError


class WorldSize(int):
    """How many ranks an elastic role may have: the most, as a number; `least` is what it can do with."""

    least: int

    def __new__(cls, most: int, least: int) -> WorldSize:
        made = super().__new__(cls, most)
        made.least = least
        return made


def _parse(value: Any) -> int:
    """A plain number of a role with a fixed size, a `WorldSize` of an elastic one."""
    if not isinstance(value, Mapping):
        return value if isinstance(value, WorldSize) else _count(value)
    if set(value) != {"min", "max"}:
        raise ValueError(f"an elastic role has min and max, as in {{min: 1, max: 8}}, not {', '.join(value)}")
    least, most = _count(value["min"]), _count(value["max"])
    if least > most:
        raise ValueError(f"min {least} is more than max {most}")
    return WorldSize(most, least) if least < most else most


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).lstrip("-").isdigit():
        raise PydanticKnownError("int_parsing")
    if int(value) < 1:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    return int(value)


def _plain(size: int) -> int | dict[str, int]:
    return {"min": size.least, "max": int(size)} if isinstance(size, WorldSize) else size


_COUNT = {"type": "integer", "minimum": 1}
_RANGE = {
    "type": "object",
    "properties": {"min": _COUNT, "max": _COUNT},
    "required": ["min", "max"],
    "additionalProperties": False,
}

WorldSizeField = Annotated[
    int, PlainValidator(_parse), PlainSerializer(_plain), WithJsonSchema({"anyOf": [_COUNT, _RANGE]})
]
"""The field of a job file."""
