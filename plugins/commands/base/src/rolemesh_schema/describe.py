"""Describe a plugin as JSON values: its options, and its operators and services, or its hooks."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_type_hints

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rolemesh.graph.routes import declared
from rolemesh.graph.routes import describe as written
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.drivers import checked, load

__all__ = ["describe", "type_name"]


def describe(record: PluginRecord) -> dict[str, Any]:
    """Return the record and, unless the plugin is disabled or broken, its doc, options, operators and services, or
    hooks."""
    record = checked(record)
    result: dict[str, Any] = msgspec.to_builtins(record)
    if record.status not in ("available", "duplicate"):
        return result
    cls = load(record)
    result |= {"doc": inspect.getdoc(cls) or "", "api_version": cls.api_version, "options": _options(cls.Options)}
    if record.kind == "workloads":
        return (
            result
            | {"group": cls.group, "deterministic": cls.deterministic, "operators": _operators(cls)}
            | {"services": _services(cls)}
        )
    return result | {"hooks": hooks_of(cls)}


def _operators(cls: type[Any]) -> list[dict[str, Any]] | None:
    """Return the operators; None if they depend on options without defaults."""
    try:
        specs = cls.operators(cls.Options.model_construct())
    except Exception:
        return None
    return [
        {
            "name": name,
            "inputs": {key: written(value) for key, value in spec.inputs.items()},
            "returns": written(declared(spec.returns)) if spec.returns is not None else None,
            "streaming": spec.streaming,
            "doc": spec.doc,
        }
        for name, spec in specs.items()
    ]


def _services(cls: type[Any]) -> list[dict[str, Any]] | None:
    """Return the methods that other roles may call; None if they depend on options without defaults."""
    try:
        specs = cls.services(cls.Options.model_construct())
    except Exception:
        return None
    return [
        msgspec.to_builtins(spec)
        | {"signature": _signature(cls, name), "doc": inspect.getdoc(getattr(cls, name, None)) or ""}
        for name, spec in specs.items()
    ]


def _signature(cls: type[Any], name: str) -> str:
    """Return the parameters of a method without `self`; "(…)" if the class creates the method only with its options."""
    method = inspect.getattr_static(cls, name, None)
    if not inspect.isfunction(method):
        return "(…)"
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


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
    """Return a type as it is written in code: ``dict[str, float]``, ``'a' | 'b'``, ``Loss | None``."""
    return re.sub(r"\b[\w.]+\.(?=\w)", "", inspect.formatannotation(annotation)).replace("NoneType", "None")
