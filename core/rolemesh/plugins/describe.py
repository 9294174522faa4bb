"""What plugins offer, as JSON values: one plugin's options and operators or hooks; the schema of job files with all."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from typing import Any, get_type_hints

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rolemesh.errors import RolemeshError
from rolemesh.graph.routes import describe as written
from rolemesh.kinds import KERNEL, job_keys, kinds
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.discovery import PluginRecord, find
from rolemesh.plugins.drivers import load
from rolemesh.spec.model import JobSpec


def checked(record: PluginRecord) -> PluginRecord:
    """The record after importing the plugin: ``broken`` or ``incompatible`` with the error, if that fails."""
    try:
        if record.status in ("available", "duplicate"):
            load(record)
        return record
    except RolemeshError as error:
        status = "incompatible" if "this kernel has" in error.what else "broken"
        return msgspec.structs.replace(record, status=status, error=str(error))


def describe(record: PluginRecord) -> dict[str, Any]:
    """The record, and unless it is disabled or broken: doc, options, operators or hooks."""
    record = checked(record)
    result: dict[str, Any] = msgspec.to_builtins(record)
    if record.status not in ("available", "duplicate"):
        return result
    cls = load(record)
    result |= {"doc": inspect.getdoc(cls) or "", "api_version": cls.api_version, "options": _options(cls.Options)}
    if record.kind == "workloads":
        return result | {"group": cls.group, "deterministic": cls.deterministic, "operators": _operators(cls)}
    return result | {"hooks": hooks_of(cls)}


def _operators(cls: type[Any]) -> list[dict[str, Any]] | None:
    """None where the operators depend on options that have no defaults."""
    try:
        specs = cls.operators(cls.Options.model_construct())
    except Exception:
        return None
    return [
        {
            "name": name,
            "inputs": {key: written(value) for key, value in spec.inputs.items()},
            "returns": written(spec.returns) if spec.returns is not None else None,
            "streaming": spec.streaming,
            "doc": spec.doc,
        }
        for name, spec in specs.items()
    ]


def _options(model: type[BaseModel]) -> list[dict[str, Any]]:
    try:
        types = get_type_hints(model)  # without what validates them
    except NameError:  # a type that only pydantic found, in the function that made the model
        types = {}
    return [
        {
            "name": info.alias or name,
            "type": type_name(types.get(name, info.annotation)),
            "required": info.is_required(),
            "default": None if info.is_required() else _default(info),
            "doc": info.description or "",
        }
        for name, info in model.model_fields.items()
    ]


def _default(info: FieldInfo) -> Any:
    value = info.get_default(call_default_factory=True, validated_data={})
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def type_name(annotation: Any) -> str:
    """A type as one writes it: ``dict[str, float]``, ``'a' | 'b'``, ``Loss | None``."""
    return re.sub(r"\b[\w.]+\.(?=\w)", "", inspect.formatannotation(annotation)).replace("NoneType", "None")


def job_schema(records: Sequence[PluginRecord]) -> tuple[dict[str, Any], list[str]]:
    """The schema, and a note for each plugin that was left out because it cannot be used.

    Where a role has ``use: fsdp``, its ``options`` must fit fsdp's; plugins that are not installed are not judged.
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
    model = definitions["RoleSpec" if kind == "workloads" else "Use"]
    return {"properties": model["properties"] | {"use": use}, **({"allOf": cases} if cases else {})}


def _hoisted(schema: dict[str, Any], prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """`schema` with its own definitions moved to the document's, under names that cannot collide."""
    text = json.dumps(schema).replace('"#/$defs/', f'"#/$defs/{prefix}.')
    moved: dict[str, Any] = json.loads(text)
    definitions |= {f"{prefix}.{name}": definition for name, definition in moved.pop("$defs", {}).items()}
    return moved
