"""The number of ranks of a role: a fixed number, or for an elastic role a minimum, a maximum and a
start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticKnownError


class WorldSize(int):
    """World size of an elastic role. The integer itself is the maximum.

    - `least`: minimum number of ranks.
    - `start`: number of ranks at the start, if the cluster has room.
    """

    least: int
    start: int

    def __new__(cls, most: int, least: int, start: int | None = None) -> WorldSize:
        made = super().__new__(cls, most)
        made.least = least
        made.start = most if start is None else start
        return made


def _parse(value: Any) -> int:
    """Return an `int` for a role with a fixed size, a `WorldSize` for an elastic role."""
    if not isinstance(value, Mapping):
        return value if isinstance(value, WorldSize) else _count(value)
    if {*value, "start"} != {"min", "max", "start"}:
        told = ", ".join(map(str, value))
        raise ValueError(
            f"an elastic role has min, max and optionally start, as in {{min: 1, max: 8}}, "
            f"not {told}"
        )
    least, most, start = (_count(value.get(key, value["max"])) for key in ("min", "max", "start"))
    if least > most:
        raise ValueError(f"min {least} is more than max {most}")
    if not least <= start <= most:
        raise ValueError(f"start {start} is not between min {least} and max {most}")
    return WorldSize(most, least, start) if least < most else most


def _count(value: Any) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | str)
        or not str(value).lstrip("-").isdigit()
    ):
        raise PydanticKnownError("int_parsing")
    if int(value) < 1:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    return int(value)


def _plain(size: int) -> int | dict[str, int]:
    if not isinstance(size, WorldSize):
        return size
    return {"min": size.least, "max": int(size)} | (
        {"start": size.start} if size.start < size else {}
    )


_COUNT = {"type": "integer", "minimum": 1}
_RANGE = {
    "type": "object",
    "properties": {"min": _COUNT, "max": _COUNT, "start": _COUNT},
    "required": ["min", "max"],
    "additionalProperties": False,
}

WorldSizeField = Annotated[
    int,
    PlainValidator(_parse),
    PlainSerializer(_plain),
    WithJsonSchema({"anyOf": [_COUNT, _RANGE]}),
]
"""Type of the field `world_size` in a job file."""
