"""The types of Arrow's columns, by the Python values that they become in rows."""

from __future__ import annotations

import importlib
import json
from typing import Any, NamedTuple

__all__ = ["BEYOND", "Kind", "common", "kind_of", "listed", "shortened"]

NONE = "nothing but nulls"
JSON = "extension<arrow.json>"
"""The type of columns of JSON, as `datasets.Json` has them."""
BEYOND = (OverflowError, UnicodeDecodeError, KeyError, json.JSONDecodeError)
"""Errors for values that Python has not: times after the year 9999, texts that are none, time zones without a name."""


class Kind(NamedTuple):
    """The kind of a column's values. Those of lists, maps and structs have `parts`, by their names."""

    name: str
    parts: tuple[tuple[str, Kind], ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(f"{name}: {kind}" if name else str(kind) for name, kind in self.parts)
        return f"{self.name} ({inner})" if self.parts else self.name


def kind_of(type: Any) -> Kind:
    """Return the kind of an Arrow type. Widths, units and the names of a list's items do not matter: rows are alike."""
    types = importlib.import_module("pyarrow.types")
    if types.is_dictionary(type):
        return kind_of(type.value_type)
    if types.is_map(type):
        return Kind("a map", (("", kind_of(type.key_type)), ("", kind_of(type.item_type))))
    if types.is_struct(type):
        return Kind("a struct", tuple((field.name, kind_of(field.type)) for field in type))
    name = str(type)
    if name.startswith(("list", "large_list", "fixed_size_list")):
        return Kind("a list", (("", kind_of(type.value_type)),))
    kinds = {
        NONE: types.is_null,
        "an integer": types.is_integer,
        "a float": types.is_floating,
        "text": lambda each: str(each) in ("string", "large_string", "string_view"),
        "bytes": lambda each: "binary" in str(each),
        "a date": types.is_date,
        "a time of day": types.is_time,
        "a duration": types.is_duration,
        "a time": lambda each: types.is_timestamp(each) and each.tz is None,
        "a time with a zone": types.is_timestamp,
    }
    return Kind(next((name for name, matches in kinds.items() if matches(type)), name))


def common(one: Kind, other: Kind) -> Kind | None:
    """Return the kind of a column that is `one` in one shard and `other` in another; None if they clash."""
    if NONE in (one.name, other.name):
        return other if one.name == NONE else one
    names = [name for name, _ in one.parts]
    if one.name != other.name or names != [name for name, _ in other.parts]:
        return None
    parts = [common(a, b) for (_, a), (_, b) in zip(one.parts, other.parts, strict=True)]
    known = [part for part in parts if part is not None]
    return Kind(one.name, tuple(zip(names, known, strict=True))) if len(known) == len(parts) else None


def shortened(batch: Any) -> Any:
    """Return an Arrow batch whose times Python's `datetime` can hold: nanoseconds become microseconds."""
    arrow = importlib.import_module("pyarrow")
    schema = arrow.schema([field.with_type(_in_python(field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema, safe=False)


def listed(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a `shortened` batch, JSON as the values that it stands for. Raises `BEYOND`."""
    found: list[dict[str, Any]] = batch.to_pylist()
    if coded := [field for field in batch.schema if JSON in str(field.type)]:
        found = [row | {field.name: _from_json(field.type, row[field.name]) for field in coded} for row in found]
    return found


def _from_json(type: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_from_json(type.value_type, each) for each in value]
    if isinstance(value, dict):
        return {field.name: _from_json(field.type, value[field.name]) for field in type}
    return json.loads(value) if str(type) == JSON else value


def _in_python(type: Any) -> Any:
    arrow = importlib.import_module("pyarrow")
    types = arrow.types
    if types.is_timestamp(type) and type.unit == "ns":
        return arrow.timestamp("us", type.tz)
    if types.is_time64(type):
        return arrow.time64("us")
    if types.is_duration(type) and type.unit == "ns":
        return arrow.duration("us")
    if types.is_struct(type):
        return arrow.struct([field.with_type(_in_python(field.type)) for field in type])
    if types.is_map(type):
        return arrow.map_(_in_python(type.key_type), _in_python(type.item_type))
    if types.is_list(type):
        return arrow.list_(_in_python(type.value_type))
    return arrow.large_list(_in_python(type.value_type)) if types.is_large_list(type) else type
