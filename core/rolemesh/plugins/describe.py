"""What a plugin offers, as JSON values: its options with types, defaults and docs, its operators or hooks."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_type_hints

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rolemesh.errors import RolemeshError
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.drivers import load
from rolemesh.plugins.manager import hooks_of

__all__ = ["checked", "describe", "type_name"]


def checked(record: PluginRecord) -> PluginRecord:
    """The record after importing the plugin: ``broken`` or ``incompatible`` with the error, if that fails."""
    if record.status != "available":
        return record
    try:
        load(record)
    except RolemeshError as error:
        return _failed(record, error)
    return record


def _failed(record: PluginRecord, error: RolemeshError) -> PluginRecord:
    status = "incompatible" if "this kernel has" in error.what else "broken"
    return msgspec.structs.replace(record, status=status, error=str(error))


def describe(record: PluginRecord) -> dict[str, Any]:
    """The record, and unless it is disabled or broken: doc, options, operators or hooks."""
    result: dict[str, Any] = msgspec.to_builtins(record)
    if record.status not in ("available", "duplicate"):
        return result
    try:
        cls = load(record)
    except RolemeshError as error:
        result |= msgspec.to_builtins(_failed(record, error))
        return result
    result["doc"] = inspect.getdoc(cls) or ""
    result["api_version"] = cls.api_version
    result["options"] = _options(cls.Options)
    if record.kind == "workloads":
        result["group"], result["deterministic"] = cls.group, cls.deterministic
        result["operators"] = _operators(cls)
    else:
        result["hooks"] = hooks_of(cls)
    return result


def _operators(cls: type[Any]) -> list[dict[str, Any]] | None:
    """None where the operators depend on options that have no defaults."""
    try:
        specs = cls.operators(cls.Options.model_construct())
    except Exception:
        return None
    return [
        {
            "name": name,
            "inputs": {key: _partition(value) for key, value in spec.inputs.items()},
            "returns": _partition(spec.returns) if spec.returns is not None else None,
            "streaming": spec.streaming,
            "doc": spec.doc,
        }
        for name, spec in specs.items()
    ]


def _partition(partition: Any) -> str:
    return repr(partition).partition(".")[2] or repr(partition)


def _options(model: type[BaseModel]) -> list[dict[str, Any]]:
    try:
        types = get_type_hints(model)  # without what validates them
    except NameError:  # a type that only pydantic found, in the function that made the model
        types = {}
    return [_option(name, types.get(name, info.annotation), info) for name, info in model.model_fields.items()]


def _option(name: str, annotation: Any, info: FieldInfo) -> dict[str, Any]:
    required = info.is_required()
    default = None if required else _default(info.get_default(call_default_factory=True, validated_data={}))
    return {
        "name": info.alias or name,
        "type": type_name(annotation),
        "required": required,
        "default": default,
        "doc": info.description or "",
    }


def _default(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def type_name(annotation: Any) -> str:
    """A type as one writes it: ``dict[str, float]``, ``'a' | 'b'``, ``Loss | None``."""
    return re.sub(r"\b[\w.]+\.(?=\w)", "", inspect.formatannotation(annotation)).replace("NoneType", "None")
