"""Check a plugin's class against its kind: base class, attributes, hooks, overridden methods."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

from rolemesh import hookspecs
from rolemesh.errors import nearest
from rolemesh.kinds import KERNEL, kind_named
from rolemesh.kinds.methods import Breach, function_of, method_breaches
from rolemesh.plugins.discovery import PluginRecord


def breaches(record: PluginRecord, found: Any) -> Iterator[Breach]:
    """Yield the ways in which `found` violates the contract of its kind. Only the first is
    reliable: later ones may follow from it, or raise."""
    kind = kind_named(record.kind)
    base = kind.base_class()
    name, home = base.__name__, "rolemesh" if record.kind in KERNEL else base.__module__
    plain = record.kind == "workloads" and not record.distribution
    role = f'{{use: function, options: {{target: "{record.name}"}}}}' if plain else ""
    if not isinstance(found, type):
        remedy = role if inspect.isfunction(found) and role else f"a class that derives from {name}"
        yield f"is not a class: {record.target} is a {type(found).__name__}", f"write {remedy}"
    if not issubclass(found, base):
        own = f"write class {found.__name__}({name}), from {home} import {name}"
        yield f"does not derive from {name}", ", or ".join(filter(None, (own, role)))
    if not isinstance(version := getattr(found, "api_version", None), int):
        newest = getattr(base, "api_version", 1)
        yield f"has no api_version (it is {version!r})", f"set api_version = {newest} in the class"
    options = getattr(found, "Options", None)
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        yield (
            "has no Options that is a pydantic model",
            'add class Options(BaseModel, extra="forbid")',
        )
    for hook in kind.required:
        if not hasattr(getattr(found, hook, None), "rolemesh_impl"):
            yield (
                f"does not implement the hook {hook!r}",
                f"mark def {hook}(self, …) with @hookimpl",
            )
    yield from _attributes(found, base)
    public = {n: f for n, v in vars(base).items() if n[0] != "_" and (f := function_of(v))}
    named = {hook: getattr(hookspecs, hook) for hook in kind.hooks if hook in public}
    yield from method_breaches(found, base, public | named)
    yield from hook_breaches(record, found)


def hooks_of(cls: type[Any]) -> dict[str, str]:
    """Return the hooks that a plugin class implements, each with the signature of the
    implementation."""
    found = {}
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        if (options := getattr(value, "rolemesh_impl", None)) is not None:
            found[options.get("specname") or name] = f"{name}{inspect.signature(value)}"
    return found


def hook_breaches(record: PluginRecord, cls: type[Any]) -> Iterator[Breach]:
    """Yield unknown hooks of the class, and hooks with arguments that their specification does not
    provide."""
    known = kind_named(record.kind).hooks
    for hook, signature in hooks_of(cls).items():
        spec = getattr(hookspecs, hook, None)
        method = getattr(cls, signature.partition("(")[0])
        if hook not in known or spec is None:
            if not method.rolemesh_impl.get("optionalhook"):
                yield f"implements {hook!r}, which is no hook of its kind", nearest(hook, known)
            continue
        allowed = list(inspect.signature(spec).parameters)
        parameters = list(inspect.signature(method).parameters.values())[1:]
        if extra := [
            repr(p.name) for p in parameters if p.name not in allowed and p.default is p.empty
        ]:
            why = (
                f"implements the hook {hook!r} as {signature}, but the hook has no "
                f"argument {', '.join(extra)}"
            )
            yield why, f"write it as {hook}(self, {', '.join(allowed)}), or with fewer arguments"


def _attributes(cls: type[Any], base: type[Any]) -> Iterator[Breach]:
    for name, hint in get_type_hints(base).items():
        if get_origin(hint) is not ClassVar or name == "api_version" or not hasattr(cls, name):
            continue
        (kind,) = get_args(hint)
        value = getattr(cls, name)
        strict = get_origin(kind) is Literal or kind in (bool, int, str)
        try:
            TypeAdapter(kind).validate_python(value, strict=strict)
        except ValidationError as error:
            first = error.errors()[0]
            meant = re.sub(r"(collections\.abc|typing)\.", "", inspect.formatannotation(kind))
            if inspect.isclass(value) and issubclass(value, BaseModel):
                wanted = get_args(kind)[0].__name__
                yield (
                    f"has {name} that does not derive from {wanted}",
                    f"write class {name}({wanted})",
                )
            else:
                yield f"sets {name} = {value!r}: {first['msg'].lower()}", f"{name} is a {meant}"
