"""A plugin's class held against the base class of its kind: class attributes and overridden methods."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

__all__ = ["Breach", "breaches"]

Breach = tuple[str, str]
"""What is wrong with the class, and what to do about it."""

MISSPELLED = 0.86
"""How alike a name must be to that of a method that the kernel calls to be taken for it."""


def breaches(cls: type[Any], base: type[Any]) -> Iterator[Breach]:
    """What of `cls` is not as its `base` declares it."""
    yield from _attributes(cls, base)
    yield from _methods(cls, base)


def _attributes(cls: type[Any], base: type[Any]) -> Iterator[Breach]:
    for name, hint in get_type_hints(base).items():
        if get_origin(hint) is not ClassVar or name == "api_version" or not hasattr(cls, name):
            continue
        (kind,), value = get_args(hint), getattr(cls, name)
        strict = get_origin(kind) is Literal or kind in (bool, int, str)
        try:
            TypeAdapter(kind).validate_python(value, strict=strict)
        except ValidationError as error:
            first = error.errors()[0]
            meant = inspect.formatannotation(kind).replace("collections.abc.", "").replace("typing.", "")
            if inspect.isclass(value) and issubclass(value, BaseModel):
                wanted = get_args(kind)[0].__name__
                yield f"has {name} that does not derive from {wanted}", f"write class {name}({wanted})"
            else:
                yield f"sets {name} = {value!r}: {first['msg'].lower()}", f"{name} is a {meant}"


def _methods(cls: type[Any], base: type[Any]) -> Iterator[Breach]:
    called = {name: value for name, value in vars(base).items() if _function(value) and not name.startswith("_")}
    for name, theirs in called.items():
        ours = inspect.getattr_static(cls, name)
        if ours is theirs:
            continue
        function = _function(ours)
        if function is None:
            yield f"has {name} that is no method", f"write def {name}{inspect.signature(_function(theirs))}"  # type: ignore[arg-type]
            continue
        wanted = inspect.signature(_function(theirs))  # type: ignore[arg-type]
        try:
            named = [p.name for p in wanted.parameters.values() if p.kind is p.KEYWORD_ONLY]
            inspect.signature(function).bind(*(n for n in wanted.parameters if n not in named), **dict.fromkeys(named))
        except TypeError as error:
            yield f"has {name}{_plain(inspect.signature(function))}: {error}", f"write def {name}{_plain(wanted)}"
    own = [
        name
        for each in cls.__mro__[: cls.__mro__.index(base)]
        for name, value in vars(each).items()
        if _function(value)
    ]
    for name in own:
        if name.startswith("_") or name in called or _marked(inspect.getattr_static(cls, name)):
            continue
        close = get_close_matches(name, called, n=1, cutoff=MISSPELLED)
        if close and inspect.getattr_static(cls, close[0]) is called[close[0]]:
            yield f"has a method {name!r}, which nobody calls", f"did you mean {close[0]!r}?"


def _function(value: Any) -> types.FunctionType | None:
    """The function behind a method, whatever sort it is."""
    value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return value if isinstance(value, types.FunctionType) else None


def _marked(value: Any) -> bool:
    """Whether it is an operator or a hook: others call it."""
    return hasattr(value, "__rolemesh_operator__") or hasattr(value, "rolemesh_impl")


def _plain(signature: inspect.Signature) -> str:
    """Without annotations."""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
