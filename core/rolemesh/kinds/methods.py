"""Compare the methods of a class with specifications: signatures, misspellings, missing
partners."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

from rolemesh import hookspecs

Breach: TypeAlias = tuple[str, str]
"""Fault of a class, phrased to follow its name, and the remedy."""

MISSPELLED = 0.86
"""Minimum similarity of names, from 0 to 1, at which a method counts as a misspelled specified
method."""


def method_breaches(
    cls: type[Any],
    base: type[Any],
    specs: Mapping[str, Callable[..., Any]],
    used: Collection[str] = (),
) -> Iterator[Breach]:
    """Yield the faults of the methods with which `cls` overrides those of `base`, compared with the
    `specs` of the same names.

    Methods named in `used`, and methods that the class itself calls, do not count as misspelled. If
    the base is `object`, a parameter ``ctx`` is optional and passed by name.
    """
    for name, spec in specs.items():
        if overrides(cls, base, name) and (error := _misfit(cls, name, spec, base is object)):
            yield error
    own = _own(cls, base)
    for pair in hookspecs.PARTNERS if "snapshot" in specs else ():
        for name, partner in (pair, pair[::-1]):
            if overrides(cls, base, name) and not overrides(cls, base, partner):
                near = _near(partner, own.keys() - specs.keys())
                hint = f"rename {near!r} to" if near else "write def"
                yield f"has {name} but no {partner}", f"{hint} {partner}{_plain(specs[partner])}"
    mentioned = {n for each in own.values() for n in _mentioned([each.__code__])}
    for name in sorted(own.keys() - specs.keys() - mentioned - {*used}):
        meant = _near(name, specs)
        if meant and not overrides(cls, base, meant):
            remedy = f"did you mean {meant!r}? A helper's name begins with an underscore"
            yield f"has a method {name!r}, which nobody calls", remedy


def overrides(cls: type[Any], base: type[Any], name: str) -> bool:
    """Return whether `cls` defines a method `name` that is not the method of `base`."""
    found = inspect.getattr_static(cls, name, None)
    return found is not None and found is not inspect.getattr_static(base, name, None)


def function_of(value: Any) -> types.FunctionType | None:
    """Return the function behind a method; None for anything else."""
    value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return value if isinstance(value, types.FunctionType) else None


def _misfit(cls: type[Any], name: str, spec: Callable[..., Any], bare: bool) -> Breach | None:
    ours = function_of(inspect.getattr_static(cls, name))
    remedy = f"write def {name}{_plain(spec)}"
    if ours is None:
        return f"has {name} that is no method", remedy
    signature = inspect.signature(ours)
    wanted = dict(inspect.signature(spec).parameters)
    if not {"self", "cls"} & wanted.keys():
        wanted = {"self": inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)} | wanted
    named = {n for n, p in wanted.items() if p.kind is p.KEYWORD_ONLY}
    if bare and "ctx" in wanted:
        wanted.pop("ctx")
        named |= {"ctx"} & signature.parameters.keys()
    try:
        signature.bind(*(wanted.keys() - named), **dict.fromkeys(named))
    except TypeError as error:
        return f"has {name}{_plain(ours)}: {error}", remedy
    return None


def _own(cls: type[Any], base: type[Any]) -> dict[str, types.FunctionType]:
    """Return the public methods of the class and its bases up to `base`, without operators and
    services."""
    above = set(base.__mro__)
    names = dict.fromkeys(n for each in cls.__mro__ if each not in above for n in vars(each))
    found = {name: inspect.getattr_static(cls, name) for name in names}
    marks = ("__rolemesh_operator__", "__rolemesh_service__", "rolemesh_impl")
    return {
        name: function
        for name, value in found.items()
        if (function := function_of(value)) is not None
        and not any(hasattr(value, mark) for mark in marks)
    }


def _mentioned(codes: Iterable[types.CodeType]) -> Iterator[str]:
    """Yield the names that code mentions, including functions inside it."""
    for code in codes:
        yield from code.co_names
        yield from _mentioned(c for c in code.co_consts if isinstance(c, types.CodeType))


def _near(name: str, known: Iterable[str]) -> str:
    """Return the known name that a misspelled or decorated one resembles (`onRestore`, `set_up`);
    "" if none."""
    if name.startswith("_"):
        return ""
    plain = name.lower().replace("_", "")
    for each in (plain, plain.removeprefix("on")):
        if close := get_close_matches(each, known, n=1, cutoff=MISSPELLED):
            return close[0]
    return ""


def _plain(function: Callable[..., Any]) -> str:
    """Return the signature without annotations; a specification's signature gets ``self``."""
    signature = inspect.signature(function)
    empty = inspect.Signature.empty
    bare = [p.replace(annotation=empty) for p in signature.parameters.values()]
    if bare[:1] and bare[0].name in ("self", "cls"):
        return str(signature.replace(parameters=bare, return_annotation=empty))
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return str(signature.replace(parameters=[own, *bare], return_annotation=empty))
