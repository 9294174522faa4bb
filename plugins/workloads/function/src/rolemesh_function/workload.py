"""The workload `function`: a plain Python function, or the methods of a plain class, as a role."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, field_validator

from rolemesh import hookspecs
from rolemesh.api.import_ref import ImportRef
from rolemesh.api.partition import Balanced, Broadcast, Partial, Partition, Sharded, Split
from rolemesh.api.service import ServiceSpec, services_of
from rolemesh.api.workload import OperatorSpec, RankContext, Workload, operator_spec
from rolemesh.errors import OptionsError, nearest
from rolemesh.graph.flow import place_of_error
from rolemesh.kinds import KERNEL
from rolemesh.kinds.methods import method_breaches

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

_PARTITION = re.compile(r"(split|broadcast|partial|sharded)(?:\((\w+)\))?")
_BALANCED = re.compile(r"balanced(?:\((\d+)(?:, *(\d+))?(?:, *(fail|drop))?\))?")
_LIFE = set(KERNEL["workloads"].hooks)
_SAYS = {"preload", "env", "group", "deterministic", "api_version", "Options"}
_TAKEN = _LIFE | _SAYS | {"check", "operators", "services"}


def parse_partition(text: str) -> Partition:
    """Parse ``split``, ``split(1)``, ``broadcast``, ``partial``, ``partial(mean)``, ``sharded(0)``, ``balanced(rows)``
    or ``balanced(rows, concurrency, drop)``. Raises `ValueError`."""
    if match := _BALANCED.fullmatch(text.strip().lower()):
        rows, concurrency, on_error = match.groups()
        return Balanced(int(rows or 1), int(concurrency or 1), "drop" if on_error == "drop" else "fail")
    match = _PARTITION.fullmatch(text.strip().lower())
    kind, argument = match.groups() if match else ("", None)
    if kind == "broadcast" and argument is None:
        return Broadcast()
    if kind == "partial" and argument in (None, "sum", "mean"):
        return Partial("mean" if argument == "mean" else "sum")
    if kind in ("split", "sharded") and (argument is None or argument.isdigit()):
        number = int(argument or 0)
        return Split(number) if kind == "split" else Sharded(number)
    known = "split, split(axis), broadcast, partial(sum|mean), sharded(dim), balanced(rows, concurrency, drop)"
    raise ValueError(f"{text!r} is no partition; known: {known}")


class FunctionOptions(BaseModel, extra="forbid", frozen=True):
    """The code to run, and the partitions of its inputs and outputs."""

    # Each zygote imports this: to read descriptions from the source would take it 14 ms.
    target: ImportRef = Field(description="A function or a class: 'module:name' or 'file.py:name'.")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Arguments for a class, or fixed ones for a function."
    )
    inputs: dict[str, str] = Field(default_factory=dict, description="Partition by parameter: {weights: broadcast}.")
    returns: str | None = Field(None, description="Partition of the result; default: split.")

    @field_validator("inputs", "returns")
    @classmethod
    def _partitions(cls, value: Any) -> Any:
        for text in value.values() if isinstance(value, dict) else filter(None, [value]):
            parse_partition(text)
        return value


class FunctionWorkload(Workload):
    """Runs user code that is not a plugin.

    A function is one operator of the same name; its parameters are the inputs, and a generator yields chunks. A class
    is instantiated once per rank. Its public methods are operators (with the partitions of `@operator` if they have it)
    or services (with `@service`); ``setup``, ``snapshot``, ``restore``, ``offload``, ``onload`` and ``teardown`` have
    their usual meaning. A parameter called ``ctx`` gets the `RankContext`. Partitions default to `Split`; an operator
    annotated ``-> None`` returns nothing.
    """

    Options = FunctionOptions
    options: FunctionOptions
    preload = ("rolemesh_function",)
    api_version = 1
    deterministic = True

    @classmethod
    def operators(cls, options: FunctionOptions) -> Mapping[str, OperatorSpec]:
        """Import the target and read its signature. Raises `OptionsError` if it cannot be imported or used."""
        target = _resolve(options.target)
        _check_kwargs(target, options)
        fixed = {"ctx"} if isinstance(target, type) else {"ctx", *options.kwargs}
        specs = {name: _spec(member, fixed, options) for name, member in _members(target, options).items()}
        if not specs and not cls.services(options):
            what = f"the class {options.target} has no public method that could be an operator"
            raise OptionsError(what, where="target", remedy="add a method without a leading underscore")
        parameters = {name for spec in specs.values() for name in spec.inputs}
        for name in options.inputs.keys() - parameters:
            what = f"{options.target} has no parameter {name!r}"
            raise OptionsError(what, where=f"inputs.{name}", remedy=nearest(name, parameters))
        return specs

    @classmethod
    def services(cls, options: FunctionOptions) -> Mapping[str, ServiceSpec]:
        """Return the methods of a class that are marked with `@service`; they are not operators."""
        return services_of(target) if isinstance(target := _resolve(options.target), type) else {}

    @classmethod
    def stateful(cls, options: FunctionOptions) -> bool:
        """Return whether the target is a class with a ``snapshot`` method."""
        return isinstance(target := _resolve(options.target), type) and hasattr(target, "snapshot")

    @classmethod
    def varies(cls, options: FunctionOptions) -> bool:
        """Return whether the target declares ``deterministic = False``."""
        return getattr(_resolve(options.target), "deterministic", True) is False

    @classmethod
    def repeats(cls, options: FunctionOptions) -> bool:
        """Return whether the target is a class that declares ``repeats = True``."""
        return getattr(_resolve(options.target), "repeats", False) is True

    @classmethod
    def check(cls, options: FunctionOptions, world_size: int) -> None:
        """Import the target in the driver, so that errors in it show before the job starts."""
        cls.operators(options)

    @classmethod
    def check_flow(cls, options: FunctionOptions, role: str, job: CheckedJob) -> None:
        """Compare the target's hooks with their specifications, as those of a `Workload`."""
        if isinstance(target := _resolve(options.target), type):
            specs = {name: getattr(hookspecs, name) for name in _LIFE}
            called = {op.operator for op in job.graph.ops if op.role == role}
            for why, remedy in method_breaches(target, object, specs, called):
                what = f"the class {options.target} {why}"
                raise OptionsError(what, where="target", remedy=remedy)

    def setup(self, ctx: RankContext) -> None:
        """Create the instance of the class, and set its operators and other hooks as attributes."""
        options = self.options
        target = _resolve(options.target)
        if not isinstance(target, type):
            setattr(self, target.__name__, functools.partial(_give_ctx(target, ctx), **options.kwargs))
            return
        self._instance = instance = _give_ctx(target, ctx)(**options.kwargs)
        for name in _LIFE - {"setup"}:
            if hasattr(instance, name):
                setattr(self, name, _give_ctx(getattr(instance, name), ctx))
        if hasattr(instance, "setup"):
            _give_ctx(instance.setup, ctx)()
        for name in (*_members(target, options), *services_of(target)):
            setattr(self, name, _give_ctx(getattr(instance, name), ctx))


def _resolve(target: ImportRef) -> Any:
    try:
        found = target.resolve()
    except Exception as error:
        at = f" ({place})" if (place := place_of_error(error)) else ""
        what = f"{str(target)!r} cannot be imported: {type(error).__name__}: {error}{at}"
        remedy = "correct the module; it is imported in the driver too, so heavy imports belong inside functions"
        raise OptionsError(what, where="target", remedy=remedy) from error
    if isinstance(found, type) and issubclass(found, Workload):
        remedy = f'write use: "{target}" for the role, and its own options'
        raise OptionsError(f"{str(target)!r} is a workload itself", where="target", remedy=remedy)
    if not (inspect.isfunction(found) or isinstance(found, type)):
        kind = type(found).__name__
        raise OptionsError(f"{str(target)!r} is a {kind}", where="target", remedy="name a function or a class")
    return found


def _members(target: Any, options: FunctionOptions) -> dict[str, Callable[..., Any]]:
    """Return the functions behind the operators, by name, in the order of their definition."""
    if inspect.isfunction(target):
        found: dict[str, Callable[..., Any]] = {target.__name__: target}
    else:
        names = dict.fromkeys(name for base in reversed(target.__mro__[:-1]) for name in vars(base))
        found = {
            name: getattr(target, name)
            for name in names
            if not name.startswith("_")
            and name not in _LIFE
            and inspect.isroutine(member := inspect.getattr_static(target, name))
            and not hasattr(member, "__rolemesh_service__")
        }
    for name in found.keys() & _TAKEN:
        what = f"{options.target}: an operator cannot be called {name!r}, the kernel uses that name"
        raise OptionsError(what, where="target", remedy="rename it")
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
    """Return the spec. `fixed` are the parameters that are not edges."""
    declared: OperatorSpec | None = getattr(member, "__rolemesh_operator__", None)
    if declared is not None:
        return declared
    signature = inspect.signature(member)
    edges = options.inputs.keys() & signature.parameters.keys() - fixed
    partitions = {name: parse_partition(options.inputs[name]) for name in edges}
    nothing = signature.return_annotation in (None, "None") and options.returns is None
    returns = None if nothing else parse_partition(options.returns or "split")
    try:
        return operator_spec(member, inputs=partitions, returns=returns, default=Split(), fixed={"self", *fixed})
    except TypeError as error:
        raise OptionsError(f"{options.target}: {error}", where="target", remedy="change its signature") from error


def _give_ctx(function: Callable[..., Any], ctx: RankContext) -> Callable[..., Any]:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return function
    return functools.partial(function, ctx=ctx) if "ctx" in parameters else function
