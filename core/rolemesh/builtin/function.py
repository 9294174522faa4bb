"""The workload `function`: a plain Python function, or the methods of a plain class, as a role."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, Field, field_validator

from rolemesh.api.import_ref import ImportRef
from rolemesh.api.partition import Broadcast, Partial, Partition, Sharded, Split
from rolemesh.api.workload import OperatorSpec, RankContext, State, Workload, operator_spec
from rolemesh.errors import OptionsError, nearest
from rolemesh.graph.flow import place_of_error

__all__ = ["FunctionOptions", "FunctionWorkload", "parse_partition"]

_PARTITION = re.compile(r"(split|broadcast|partial|sharded)(?:\((\w+)\))?")
_LIFE = {"setup", "snapshot", "restore", "offload", "onload", "teardown"}
_TAKEN = _LIFE | {"check", "operators", "preload", "env", "group", "deterministic", "api_version", "Options"}


def parse_partition(text: str) -> Partition:
    """``split``, ``split(1)``, ``broadcast``, ``partial``, ``partial(mean)``, ``sharded(0)``; raises `ValueError`."""
    match = _PARTITION.fullmatch(text.strip().lower())
    kind, argument = match.groups() if match else ("", None)
    if kind == "broadcast" and argument is None:
        return Broadcast()
    if kind == "partial" and argument in (None, "sum", "mean"):
        return Partial("mean" if argument == "mean" else "sum")
    if kind in ("split", "sharded") and (argument is None or argument.isdigit()):
        number = int(argument or 0)
        return Split(number) if kind == "split" else Sharded(number)
    raise ValueError(f"{text!r} is no partition; known: split, split(axis), broadcast, partial(sum|mean), sharded(dim)")


class FunctionOptions(BaseModel, extra="forbid", frozen=True):
    """What to run, and how its inputs and outputs lie over the ranks."""

    target: ImportRef = Field(description="A function or a class: 'module:name' or 'file.py:name'.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of the class, or fixed arguments of the function."
    )
    inputs: dict[str, str] = Field(
        default_factory=dict, description="Partition by parameter, e.g. {batch: split, weights: broadcast}."
    )
    returns: str | None = Field(default=None, description="Partition of what is returned; split if not given.")

    @field_validator("inputs", "returns")
    @classmethod
    def _partitions(cls, value: Any) -> Any:
        for text in value.values() if isinstance(value, dict) else filter(None, [value]):
            parse_partition(text)
        return value


class FunctionWorkload(Workload):
    """Runs user code that is no plugin.

    A function is one operator of its own name; its parameters are the inputs, and a generator yields chunks. A class
    is made once per rank; its public methods are operators (with the partitions of `@operator` where they have it),
    and ``setup``, ``snapshot``, ``restore``, ``offload``, ``onload`` and ``teardown`` keep their meaning. A parameter
    called ``ctx`` gets the `RankContext`. Partitions default to `Split`; an operator annotated ``-> None`` returns
    nothing.
    """

    Options = FunctionOptions
    api_version = 1
    deterministic = True

    def __init__(self) -> None:
        self._instance: Any = None

    @classmethod
    def operators(cls, options: FunctionOptions) -> Mapping[str, OperatorSpec]:
        """Import the target and read its signature. Raises `OptionsError` where it cannot be imported or used."""
        target = _resolve(options.target)
        _check_kwargs(target, options)
        fixed = {"ctx"} if isinstance(target, type) else {"ctx", *options.kwargs}
        specs = {name: _spec(member, fixed, options) for name, member in _members(target, options).items()}
        if not specs:
            raise OptionsError(
                f"the class {options.target} has no public method that could be an operator",
                where="target",
                remedy="add a method without a leading underscore",
            )
        parameters = {name for spec in specs.values() for name in spec.inputs}
        for name in options.inputs.keys() - parameters:
            raise OptionsError(
                f"{options.target} has no parameter {name!r}", where=f"inputs.{name}", remedy=nearest(name, parameters)
            )
        return specs

    @classmethod
    def stateful(cls, options: FunctionOptions) -> bool:
        """Whether the target is a class with a ``snapshot`` method."""
        return isinstance(target := _resolve(options.target), type) and hasattr(target, "snapshot")

    @classmethod
    def check(cls, options: FunctionOptions, world_size: int) -> None:
        """Import the target in the driver, where a mistake in it costs nothing."""
        cls.operators(options)

    def setup(self, ctx: RankContext[FunctionOptions]) -> None:
        """Make the class's instance, and an attribute per operator that calls it."""
        options = ctx.options
        target = _resolve(options.target)
        if isinstance(target, type):
            self._instance = _give_ctx(target, ctx)(**options.kwargs)
            if hasattr(target, "setup"):
                _give_ctx(self._instance.setup, ctx)()
            for name in ("offload", "onload"):
                if hasattr(self._instance, name):
                    setattr(self, name, getattr(self._instance, name))
            for name in _members(target, options):
                setattr(self, name, _give_ctx(getattr(self._instance, name), ctx))
        else:
            setattr(self, target.__name__, functools.partial(_give_ctx(target, ctx), **options.kwargs))

    def snapshot(self) -> State | None:
        """The instance's own snapshot; None for a function, or for a class without one."""
        return self._instance.snapshot() if hasattr(self._instance, "snapshot") else None

    def restore(self, state: State) -> None:
        """Hand `state` to the instance's ``restore``."""
        if not hasattr(self._instance, "restore"):
            return super().restore(state)
        self._instance.restore(state)
        return None

    def teardown(self) -> None:
        """Call the instance's ``teardown``, if it has one."""
        if hasattr(self._instance, "teardown"):
            self._instance.teardown()


def _resolve(target: ImportRef) -> Any:
    try:
        found = target.resolve()
    except Exception as error:
        place = place_of_error(error)
        raise OptionsError(
            f"{str(target)!r} cannot be imported: {type(error).__name__}: {error}{f' ({place})' if place else ''}",
            where="target",
            remedy="correct the module; it is imported in the driver too, so heavy imports belong inside functions",
        ) from error
    if not (inspect.isfunction(found) or isinstance(found, type)):
        kind = type(found).__name__
        raise OptionsError(f"{str(target)!r} is a {kind}", where="target", remedy="name a function or a class")
    return found


def _members(target: Any, options: FunctionOptions) -> dict[str, Callable[..., Any]]:
    """The functions behind the operators, by name, in the order of their definition."""
    if inspect.isfunction(target):
        found: dict[str, Callable[..., Any]] = {target.__name__: target}
    else:
        names = dict.fromkeys(name for base in reversed(target.__mro__[:-1]) for name in vars(base))
        found = {
            name: getattr(target, name)
            for name in names
            if not name.startswith("_")
            and name not in _LIFE
            and inspect.isroutine(inspect.getattr_static(target, name))
        }
    for name in found.keys() & _TAKEN:
        raise OptionsError(
            f"{options.target}: an operator cannot be called {name!r}, the kernel uses that name",
            where="target",
            remedy="rename it",
        )
    return found


def _check_kwargs(target: Any, options: FunctionOptions) -> None:
    try:
        signature = inspect.signature(target)
    except ValueError:  # a class without a Python signature
        return
    given = options.kwargs | ({"ctx": None} if "ctx" in signature.parameters else {})
    try:
        (signature.bind if isinstance(target, type) else signature.bind_partial)(**given)
    except TypeError as error:
        what = f"{options.target} does not take these kwargs: {error}"
        raise OptionsError(what, where="kwargs", remedy=f"its signature is {signature}") from error


def _spec(member: Callable[..., Any], fixed: set[str], options: FunctionOptions) -> OperatorSpec:
    """`fixed` are the parameters that are no edges."""
    declared: OperatorSpec | None = getattr(member, "__rolemesh_operator__", None)
    if declared is not None:
        return declared
    signature = inspect.signature(member)

    @functools.wraps(member)
    def edges_only(*args: Any, **kwargs: Any) -> Any:
        return member(*args, **kwargs)

    inputs = [p for p in signature.parameters.values() if p.name not in fixed]
    edges_only.__signature__ = signature.replace(parameters=inputs)  # type: ignore[attr-defined]
    partitions = {p.name: parse_partition(options.inputs[p.name]) for p in inputs if p.name in options.inputs}
    returns: Partition | None = parse_partition(options.returns) if options.returns else Split()
    if signature.return_annotation in (None, "None") and options.returns is None:
        returns = None
    try:
        return operator_spec(edges_only, inputs=partitions, returns=returns, default=Split())
    except TypeError as error:
        raise OptionsError(f"{options.target}: {error}", where="target", remedy="change its signature") from error


def _give_ctx(function: Callable[..., Any], ctx: RankContext[Any]) -> Callable[..., Any]:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return function
    return functools.partial(function, ctx=ctx) if "ctx" in parameters else function
