"""Draws arguments that fit the JSON schema of a tool, for plugins about which the kit knows nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

__all__ = ["drawn"]

WORDS = ("", "0", "7", "apple", "north", "a b\nc", "Grüße")
DEEPEST = 4


def drawn(schema: Mapping[str, Any], random: Random) -> Any:
    """Return a JSON value that fits `schema`, as far as it has `type`, `enum`, `const`, `anyOf`, `$ref` and limits."""
    return _drawn(schema, schema.get("$defs", {}), random, 0)


def _drawn(schema: Mapping[str, Any], defs: Mapping[str, Any], random: Random, depth: int) -> Any:
    if "$ref" in schema:
        return _drawn(defs.get(str(schema["$ref"]).rpartition("/")[2], {}), defs, random, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return random.choice(list(schema["enum"]))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return _drawn(random.choice(list(schema[several])), defs, random, depth + 1)
    kind = schema.get("type", "string")
    kind = random.choice(kind) if isinstance(kind, list) else kind
    match kind:
        case "object":
            fields = schema.get("properties", {})
            optional = {name for name in fields if depth < DEEPEST and random.random() < 0.5}
            wanted = [name for name in fields if name in optional or name in schema.get("required", ())]
            return {name: _drawn(fields[name], defs, random, depth + 1) for name in wanted}
        case "array":
            count = schema.get("minItems", 0 if depth >= DEEPEST else 1)
            return [_drawn(schema.get("items", {}), defs, random, depth + 1) for _ in range(count)]
        case "integer" | "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
            high = schema.get("maximum", schema.get("exclusiveMaximum", low + 9) - 1)
            return random.randint(int(low), max(int(low), int(high)))
        case "boolean":
            return random.random() < 0.5
        case "null":
            return None
    word = random.choice(WORDS)
    return word.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(word) + 99)]
