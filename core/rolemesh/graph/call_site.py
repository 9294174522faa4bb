"""A call of an operator in a flow: its arguments and settings, checked.

Edges between calls are the tracer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolemesh.api.workload import OperatorSpec
from rolemesh.errors import FlowError, RolemeshError, nearest
from rolemesh.graph.checks import RoleShape, constant
from rolemesh.graph.flow import RoleHandle, Value
from rolemesh.graph.logical import AtMost, OpCall
from rolemesh.graph.routes import by_demand

SETTINGS = ("lag", "initial", "every", "at", "credits", "calls")
"""The arguments of a call that set how it runs. An operator has no parameter with such a name."""


class Lag(NamedTuple):
    """The number of steps by which an input is late; with `newest` the largest such number."""

    steps: int
    newest: bool


@dataclass(frozen=True)
class CallSite:
    """A call: ``role.operator``, its place in the flow, and the list that takes its errors.

    Each method returns a usable result even after an error, so that one trace shows all errors.
    """

    name: str
    where: str | None
    errors: list[RolemeshError]

    def error(self, what: str, remedy: str) -> None:
        """Add an error of this call."""
        self.errors.append(FlowError(what, where=self.where, remedy=remedy))

    def count(self, setting: str, value: object, least: int) -> int:
        """Return `value` as an integer of at least `least`. Otherwise add an error and return
        `least`."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self.error(f"{self.name}: {setting} is {value!r}", f"use an integer of at least {least}")
        return least

    def arguments(
        self, spec: OperatorSpec, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments by parameter, in the order of the signature."""
        name = self.name
        if clash := [param for param in spec.inputs if param in SETTINGS]:
            what = (
                f"operator {name} has a parameter {clash[0]!r}, which means something "
                "else in a flow"
            )
            self.error(what, "rename the parameter in the workload")
        signature = f"it is {name}({', '.join(spec.inputs)})"
        if len(args) > len(spec.inputs):
            self.error(f"{name} takes {len(spec.inputs)} arguments, not {len(args)}", signature)
        bound = dict(zip(spec.inputs, args, strict=False))
        for param, value in kwargs.items():
            if param not in spec.inputs:
                known = nearest(param, [*spec.inputs, *SETTINGS])
                self.error(f"{name} has no parameter {param!r}", f"{known}; {signature}")
            elif param in bound:
                self.error(f"{name} gets {param!r} twice", signature)
            else:
                bound[param] = value
        missing = [param for param in spec.required if param not in bound]
        if missing and kwargs.keys() <= spec.inputs.keys():
            self.error(f"{name} lacks {', '.join(map(repr, missing))}", signature)
        return {param: bound[param] for param in spec.inputs if param in bound}

    def constants(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return those arguments that are plain data."""
        found = {}
        for param, argument in arguments.items():
            try:
                found[param] = constant(argument)
            except TypeError as error:
                remedy = "pass values whole, and constants as in JSON"
                self.error(f"{self.name}({param}): {error}", remedy)
        return found

    def runs(self, settings: Mapping[str, Any]) -> tuple[int, int]:
        """Return `every` and `at`: the call runs in step `at` of every `every` steps."""
        every = self.count("every", settings["every"], 1)
        at = every - 1 if settings["at"] is None else self.count("at", settings["at"], 0)
        if at >= every:
            what = f"{self.name}: at={at} never comes with every={every}"
            self.error(what, f"use 0 to {every - 1}")
        return every, at

    def lags(
        self, edges: Mapping[str, Value], lag: Any, together: bool, ops: Sequence[OpCall]
    ) -> dict[str, Lag]:
        """Return the lag of each edge. `together`: all ranks of the role must take the same
        values. `ops` are the calls so far."""
        name = self.name
        given = dict(lag) if isinstance(lag, Mapping) else dict.fromkeys(edges, lag)
        if unknown := sorted(given.keys() - edges.keys()):
            what = f"{name}: lag for {unknown}, which take no value of another call"
            self.error(what, nearest(unknown[0], edges))
        if not edges and not isinstance(lag, Mapping) and lag != 0:
            what = f"{name}: lag={lag!r}, but it takes no value of another call"
            self.error(what, "leave lag out")
        found: dict[str, Lag] = {}
        for param, value in edges.items():
            one = 0 if given.get(param) == AtMost(0) else given.get(param, 0)
            if not isinstance(one, AtMost):
                found[param] = Lag(self.count("lag", one, 0), False)
                continue
            items = value._op is not None and by_demand(ops[value._op].returns) is not None
            if together and not items:
                what = (
                    f"{name}: lag={one!r} for {param!r}, but each rank of a collective "
                    "role would take another value"
                )
                self.error(what, f"give it an exact lag: lag={{{param!r}: {one.steps}}}")
            found[param] = Lag(self.count("lag of AtMost", one.steps, 0), True)
        return found

    def initial(
        self, lags: Mapping[str, Lag], initial: Mapping[str, Any] | None
    ) -> dict[str, tuple[Any]]:
        """Return the values that late inputs have before their producer's first one."""
        found: dict[str, tuple[Any]] = {}
        for param, value in (initial or {}).items():
            what = f"{self.name}: initial for {param!r}"
            if param not in lags or not lags[param].steps:
                late = f"give it one: lag={{{param!r}: 1}}"
                remedy = late if param in lags else nearest(param, lags)
                self.error(f"{what}, which takes no older value of another call", remedy)
                continue
            try:
                found[param] = (constant(value),)
            except TypeError as error:
                self.error(f"{what}: {error}", "it is a constant, as in JSON")
        return found

    def callees(self, role: str, calls: Any, roles: Mapping[str, RoleShape]) -> tuple[str, ...]:
        """Return the roles whose services the operator of `role` may call."""
        found: dict[str, None] = {}
        for one in calls if isinstance(calls, (list, tuple)) else [calls]:
            other = one._role if isinstance(one, RoleHandle) else ""
            if not other:
                what = f"{self.name}: calls has {one!r}, which is no role"
                self.error(what, "name roles: calls=[job.<role>]")
            elif other in roles:
                found[other] = None
                self._check_callee(role, other, roles[other])
        return tuple(found)

    def _check_callee(self, role: str, other: str, shape: RoleShape) -> None:
        calls = f"{self.name} calls role {other!r}"
        if other == role:
            what = f"{self.name} calls its own role"
            self.error(what, "call the method: it is in the same process")
        elif not shape.services:
            self.error(f"{calls}, which has no service", "mark methods as @service")
        elif shape.together:
            what = f"{calls}, whose ranks only work all together"
            self.error(what, "give the role one rank, or an operator")
