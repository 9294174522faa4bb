"""Find keys without effect, because another one is off. Pure.

A field states what it needs: ``Field(json_schema_extra={"needs": "optimizer = sgd"})``. Every entry of a list must
hold; `` or `` separates alternatives. An alternative is a key that must be set, ``key = value|value``, or ``key !=
value``. A key, perhaps with dots, belongs to the field's own model, or to a model around it: of a role, of the job, of
the engine's options. A key that none of them has is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rolemesh.job.prepared import Prepared
from rolemesh.job_file.model import JobSpec, Resources

__all__ = ["needs_of", "warnings", "without_effect"]

_ALTERNATIVE = re.compile(r"([\w.]+)(?: (!?=) (\S+))?")
_UNKNOWN = object()
_OF_JOB_FILE: Mapping[str, str] = {"diagnosers": "failover", "resources.most": "failover"}
"""Needs of the kernel's keys with this engine, by the last parts of their paths."""
_SECTIONS: Mapping[type[BaseModel], str] = {JobSpec: "", Resources: "resources."}


def needs_of(model: type[BaseModel], name: str) -> list[str]:
    """Return the needs of the field `name` of a model."""
    extra = model.model_fields[name].json_schema_extra
    needs: Any = extra.get("needs", []) if isinstance(extra, dict) else []
    if model in _SECTIONS:
        needs = _OF_JOB_FILE.get(f"{_SECTIONS[model]}{name}", [])
    return [needs] if isinstance(needs, str) else list(needs)


def without_effect(*models: BaseModel, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the path of each key in the last of `models` whose value is not its default, with its missing need.

    `models` are ordered from the outermost to the innermost; `path` is that of the last one.
    """
    model = models[-1]
    for name, field in type(model).model_fields.items():
        if name not in model.model_fields_set:
            continue
        value = getattr(model, name)
        if value == field.get_default(call_default_factory=True):
            continue
        for need in needs_of(type(model), name):
            if not any(_holds(models, alternative) for alternative in need.split(" or ")):
                yield (*path, name), " or ".join(map(_in_words, need.split(" or ")))
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for key, each in [((), value), *(((key,), each) for key, each in inner)]:
            if isinstance(each, BaseModel):
                yield from without_effect(*models, each, path=(*path, name, *key))


def warnings(job: Prepared, options: BaseModel | None) -> list[str]:
    """Return a warning for each key of the job file that is set but has no effect, with its place and its need, then
    the warnings of workloads.

    `options` are the engine's, None if they are unknown.
    """
    spec, chosen = job.job.spec, job.selection
    around = (spec,) if options is None else (options, spec)
    found = list(without_effect(*around))
    found += without_effect(*around, chosen.engine.options, path=("engine", "options"))
    for role, each in chosen.roles.items():
        found += without_effect(*around, spec.roles[role], each.options, path=("roles", role, "options"))
    lists = {"placement": chosen.placement, "failover": chosen.failover, "diagnosers": chosen.diagnosers}
    for key, uses in (lists | {"observers": chosen.observers}).items():
        for n, each in enumerate(uses):
            found += without_effect(*around, each.options, path=(key, n, "options"))
    for (kind, _), each in chosen.declared.items():
        found += without_effect(*around, each.options, path=("plugins", kind))
    unread = [f"{job.job.where(path)}: it has no effect unless {needs}" for path, needs in found]
    return [*unread, *job.warnings()]


def _in_words(alternative: str) -> str:
    key, sign, values = _parsed(alternative)
    return f"{key} is {'not ' * (sign == '!=')}{values.replace('|', ' or ')}" if sign else f"{key} is set"


def _parsed(alternative: str) -> tuple[str, str, str]:
    match = _ALTERNATIVE.fullmatch(alternative)
    if match is None:
        raise ValueError(f"{alternative!r} is no condition, such as 'key', 'key = value' or 'key != value'")
    key, sign, values = match.groups(default="")
    return key, sign, values


def _holds(models: tuple[BaseModel, ...], alternative: str) -> bool:
    key, sign, values = _parsed(alternative)
    found = _found(models, key.split("."))
    if not sign or found is _UNKNOWN:
        return bool(found)  # _UNKNOWN is true
    text = "null" if found is None else str(found).lower() if isinstance(found, bool) else str(found)
    return (text in values.split("|")) is (sign == "=")


def _found(models: tuple[BaseModel, ...], parts: list[str]) -> Any:
    for model in reversed(models):
        if parts[0] in type(model).model_fields:
            value: Any = model
            for part in parts:
                value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
            return value
    return _UNKNOWN
