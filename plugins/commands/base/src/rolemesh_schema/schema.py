"""The JSON Schema of job files: the kernel's keys, and the options of plugins that a job file may name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rolemesh.errors import PluginError, RolemeshError
from rolemesh.job_file.model import JobSpec
from rolemesh.kinds import KERNEL, job_keys, kinds
from rolemesh.plugins.defaults import default_engine
from rolemesh.plugins.discovery import PluginRecord, find
from rolemesh.plugins.drivers import load

__all__ = ["job_schema"]


def job_schema(records: Sequence[PluginRecord]) -> tuple[dict[str, Any], list[str]]:
    """Return the schema, and a note for each plugin that was left out because it is unusable.

    If a role has ``use: fsdp``, its ``options`` must fit those of fsdp. Options of plugins that are not installed are
    not checked.
    """
    schema = JobSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    definitions: dict[str, Any] = schema["$defs"]
    notes: list[str] = []
    definitions["RoleSpec"] |= _choices("workloads", records, definitions, notes)
    for key, kind in job_keys().items():
        name = f"Use_{key}"
        definitions[name] = definitions["Use"] | _choices(kind, records, definitions, notes)
        items, written = {"$ref": f"#/$defs/{name}"}, schema["properties"][key]
        written["items"] = items
        if key == "placement":
            described = {k: written.pop(k) for k in ("title", "description", "default") if k in written}
            schema["properties"][key] = {"anyOf": [items, written], **described}
    engines = definitions["EngineUse"] | _choices("engines", records, definitions, notes)
    with suppress(PluginError):
        default = find("engines", default_engine(records), records)
        options = _hoisted(load(default).Options.model_json_schema(), "engine", definitions)
        unnamed = {"not": {"required": ["use"]}}
        engines.setdefault("allOf", []).append({"if": unnamed, "then": {"properties": {"options": options}}})
    definitions["EngineUse"] = engines
    for kind in (kind.name for kind in kinds().values() if kind.name not in KERNEL and kind.listed):
        use = definitions[f"Use_{kind}"] = definitions["Use"] | _choices(kind, records, definitions, notes)
        either = {"anyOf": [{"type": "string"}, {"$ref": f"#/$defs/Use_{kind}"}]}
        if "allOf" in use:
            schema["properties"]["plugins"].setdefault("properties", {})[kind] = {"type": "array", "items": either}
    return schema, notes


def _choices(
    kind: str, records: Sequence[PluginRecord], definitions: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    names, cases = list[str](), list[dict[str, Any]]()
    for record in (each for each in records if each.kind == kind and each.status != "disabled"):
        reference = f"{record.distribution}:{record.name}"
        try:
            options = load(find(kind, reference, records)).Options.model_json_schema()
        except RolemeshError as error:
            notes.append(str(error))
            continue
        spelled = [reference] if record.status == "duplicate" else [record.name, reference]
        names += spelled[:1]
        then: dict[str, Any] = {"properties": {"options": _hoisted(options, f"{kind}.{reference}", definitions)}}
        then |= {"required": ["options"]} if options.get("required") else {}
        cases.append({"if": {"properties": {"use": {"enum": spelled}}, "required": ["use"]}, "then": then})
    use = {"type": "string", "examples": sorted(names), "description": "Name of an installed plugin."}
    model = definitions[{"workloads": "RoleSpec", "engines": "EngineUse"}.get(kind, "Use")]
    return {"properties": model["properties"] | {"use": use}, **({"allOf": cases} if cases else {})}


def _hoisted(schema: dict[str, Any], prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` with its definitions moved to those of the document, under names that cannot collide."""
    text = json.dumps(schema).replace('"#/$defs/', f'"#/$defs/{prefix}.')
    moved: dict[str, Any] = json.loads(text)
    definitions |= {f"{prefix}.{name}": definition for name, definition in moved.pop("$defs", {}).items()}
    return moved
