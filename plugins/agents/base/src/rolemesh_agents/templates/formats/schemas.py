"""The values of arguments that a model writes without quotes: their JSON schema says what each text means. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rolemesh_agents.templates.formats.strict import json_value

__all__ = ["argument_schema", "typed"]

_DEEPEST = 16
"""Number of schemas inside each other after which a schema says nothing."""
_CHOICES = ("anyOf", "oneOf", "allOf")
_PROBES: Sequence[Any] = (0.5, [], {})
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,3})?")


def argument_schema(parameters: Any, key: str) -> Any:
    """Return what `parameters`, the schema of a tool's arguments, says of the argument `key`; {} if it says nothing."""
    return _about(parameters, parameters, key, 0)


def typed(text: str, schema: Any, root: Any) -> Any:
    """Return the value that `text` means: the first one of null, a number, a bool, JSON and the text itself that
    `schema` allows.

    `root`: the schema in which ``$ref`` looks. A text stays a text if the schema allows everything. If it allows no
    value, the result is what the text is as JSON, so that the tool can say what is wrong.
    """
    if all(_allows(schema, each, root, 0) for each in (text, *_PROBES)):
        return text
    json_of = _json(text)
    found = next((each for each in _values(text, json_of) if _allows(schema, each, root, 0)), json_of)
    return int(found) if isinstance(found, float) and found.is_integer() else found


def _values(text: str, json_of: Any) -> Iterator[Any]:
    """Yield the values that a text may mean, in the order of vLLM's ``coerce_to_schema_type``."""
    plain = text.strip()
    if plain.lower() == "null":
        yield None
    if _NUMBER.fullmatch(plain):
        if re.fullmatch(r"[+-]?\d+", plain):
            yield int(plain)
        elif math.isfinite(value := float(plain)):
            yield value
    spelled = {"true": True, "1": True, "false": False, "0": False}.get(plain.lower())
    if spelled is not None:
        yield spelled
    if not isinstance(json_of, str):
        yield json_of
    yield text
    if plain.lower() == "none":
        yield None


def _json(text: str) -> Any:
    """Return the JSON value of a text, or the text if it is none."""
    try:
        return json_value(text)
    except ValueError:
        return text


def _allows(schema: Any, value: Any, root: Any, depth: int) -> bool:
    """Return whether a schema allows a value, by its types, its enumerations and its choices. It looks into no value:
    only JSON has values inside of others, and JSON has types of its own."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return schema is not False
    if value is None and schema.get("nullable") is True:
        return True
    kinds = _kinds(schema)
    if kinds and kinds.isdisjoint(_kinds_of(value)):
        return False
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list) and not any(type(each) is type(value) and each == value for each in listed):
        return False
    for word in _CHOICES:
        if isinstance(choices := schema.get(word), list) and choices:
            found = (_allows(each, value, root, depth + 1) for each in choices)
            if not (all(found) if word == "allOf" else any(found)):
                return False
    return True


def _kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema names, or the one that its other words are about."""
    kind = schema.get("type")
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema or "prefixItems" in schema else []
    return frozenset(each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str))


def _kinds_of(value: Any) -> Sequence[str]:
    """Return the types of JSON Schema that a value has."""
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("number",)
        case str():
            return ("string",)
        case list():
            return ("array",)
        case _:
            return ("object",)


def _about(schema: Any, root: Any, key: str, depth: int) -> Any:
    """Return what the schema of an object says of one of its keys."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return {}
    named = schema.get("properties")
    if isinstance(named, Mapping) and key in named:
        return named[key]
    inner = [each for word in _CHOICES if isinstance(schema.get(word), list) for each in schema[word]]
    said = [found for each in inner if (found := _about(each, root, key, depth + 1)) != {}]
    if said:
        return {"anyOf": said}
    more = schema.get("additionalProperties")
    return more if isinstance(more, Mapping) else {}


def _resolved(schema: Any, root: Any) -> Any:
    """Return a schema in place of a chain of ``$ref`` into `root`, with what stands beside them. Other references say
    nothing."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping) or not isinstance(path := schema.get("$ref"), str):
            return schema
        found: Any = root if path.startswith("#") else {}
        for name in path.split("/")[1:]:
            found = found.get(name.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, Mapping) else {}
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**found, **beside} if isinstance(found, Mapping) else found
    return {}
