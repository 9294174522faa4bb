"""The tracer behind a flow's handles: it collects calls, edges, and all errors."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from rolemesh.api.workload import OperatorSpec
from rolemesh.errors import FlowError, RolemeshError, nearest, raise_all
from rolemesh.graph import checks
from rolemesh.graph.checks import RoleShape, constant, count
from rolemesh.graph.flow import (
    Feedback,
    Flow,
    JobHandle,
    OperatorHandle,
    RoleHandle,
    Value,
    place_of,
)
from rolemesh.graph.logical import AtMost, Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import RouteError, by_demand, route

SETTINGS = ("lag", "initial", "every", "at", "credits", "calls")


class _Pending(NamedTuple):
    """An edge whose producer may still be unknown."""

    value: Value
    dst: int
    param: str
    lag: int
    newest: bool
    initial: tuple[Any, ...]
    credits: int | None
    where: str | None


class GraphTracer:
    """Collects calls, edges and errors while the flow runs."""

    def __init__(self, roles: Mapping[str, RoleShape], credits: int | None) -> None:
        self.roles = roles
        self.credits = credits
        self.errors: list[RolemeshError] = []
        self.ops: list[OpCall] = []
        self.specs: list[OperatorSpec] = []
        self.pending: list[_Pending] = []
        self.feedbacks: list[Feedback] = []
        self.unknown: set[str] = set()
        self.called: set[str] = set()

    def error(self, what: str, where: str | None, remedy: str) -> None:
        self.errors.append(FlowError(what, where=where, remedy=remedy))

    # ------------------------------------------------------------------------------------ what the
    # handles report

    def role(self, name: str) -> RoleHandle:
        if name not in self.roles and name not in self.unknown:
            self.unknown.add(name)
            self.error(
                f"the job has no role {name!r}",
                place_of(sys._getframe()),
                nearest(name, self.roles),
            )
        return RoleHandle(self, name)

    def feedback(self, name: str) -> Feedback:
        made = Feedback(self, name, place_of(sys._getframe()) or "")
        self.feedbacks.append(made)
        return made

    def bind(self, feedback: Feedback, value: object) -> None:
        where = place_of(sys._getframe())
        if feedback._bound is not None:
            self.error(
                f"{feedback._what} is bound twice", where, "bind it once, to what one call returns"
            )
        elif isinstance(value, Feedback) or not self._usable(
            value, f"{feedback._what}.bind", where
        ):
            if isinstance(value, Feedback):
                self.error(
                    f"{feedback._what} is bound to a feedback",
                    where,
                    "bind it to what a call returns",
                )
            feedback._bound = Value(self, None, feedback._what)
        else:
            assert isinstance(value, Value)
            feedback._bound = value

    def call(
        self,
        role: str,
        operator: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> Value:
        where = place_of(sys._getframe())
        name = f"{role}.{operator}"
        if role not in self.roles:
            return Value(self, None, name)
        self.called.add(role)
        spec = self.roles[role].operators.get(operator)
        if spec is None:
            remedy = nearest(operator, self.roles[role].operators)
            self.error(f"role {role!r} has no operator {operator!r}", where, remedy)
            return Value(self, None, name)
        if clash := [param for param in spec.inputs if param in SETTINGS]:
            what = (
                f"operator {name} has a parameter {clash[0]!r}, which means something "
                "else in a flow"
            )
            self.error(what, where, "rename the parameter in the workload")
        arguments = self._bind_arguments(name, spec, args, kwargs, where)
        every = count(self.errors, name, "every", settings["every"], 1, where)
        at = (
            every - 1
            if settings["at"] is None
            else count(self.errors, name, "at", settings["at"], 0, where)
        )
        if at >= every:
            self.error(
                f"{name}: at={at} never comes with every={every}", where, f"use 0 to {every - 1}"
            )
        op = len(self.ops)
        again = sum(call.role == role and call.operator == operator for call in self.ops)
        label = f"{name}#{again + 1}" if again else name
        edges, constants = self._split_arguments(name, arguments, where)
        given = settings["credits"]
        credits = (
            self.credits if given is None else count(self.errors, name, "credits", given, 1, where)
        )
        lags = self._lags(name, edges, settings["lag"], where)
        initial = self._initial(name, lags, settings["initial"], where)
        newest = [param for param, (_, newest) in lags.items() if newest]
        self.errors += checks.check_shared(name, spec, self.roles[role], edges, newest, where)
        self.pending += [
            _Pending(value, op, param, *lags[param], initial.get(param, ()), credits, where)
            for param, value in edges.items()
        ]
        runs = every, at, where or "", self._calls(name, role, settings["calls"], where)
        self.ops.append(
            OpCall(op, role, operator, label, spec.returns, spec.streaming, constants, *runs)
        )
        self.specs.append(spec)
        return Value(self, op, label)

    # ----------------------------------------------------------------------------------------------
    # one call's parts

    def _calls(self, name: str, role: str, calls: Any, where: str | None) -> tuple[str, ...]:
        """Return the roles whose services the operator may call."""
        found = []
        for one in calls if isinstance(calls, (list, tuple)) else [calls]:
            other = one._role if isinstance(one, RoleHandle) else ""
            if not other:
                self.error(
                    f"{name}: calls has {one!r}, which is no role",
                    where,
                    "name roles: calls=[job.<role>]",
                )
            elif other in self.roles:
                shape = self.roles[other]
                if other == role:
                    self.error(
                        f"{name} calls its own role",
                        where,
                        "call the method: it is in the same process",
                    )
                elif not shape.services:
                    self.error(
                        f"{name} calls role {other!r}, which has no service",
                        where,
                        "mark methods as @service",
                    )
                elif shape.together:
                    remedy = "give the role one rank, or an operator"
                    self.error(
                        f"{name} calls role {other!r}, whose ranks only work all together",
                        where,
                        remedy,
                    )
                else:
                    found.append(other)
                self.called.add(other)
        return tuple(dict.fromkeys(found))

    def _bind_arguments(
        self,
        name: str,
        spec: OperatorSpec,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        where: str | None,
    ) -> dict[str, Any]:
        """Return the arguments by parameter, in the order of the signature."""
        signature = f"it is {name}({', '.join(spec.inputs)})"
        if len(args) > len(spec.inputs):
            self.error(
                f"{name} takes {len(spec.inputs)} arguments, not {len(args)}", where, signature
            )
        bound = dict(zip(spec.inputs, args, strict=False))
        for param, value in kwargs.items():
            if param not in spec.inputs:
                known = nearest(param, [*spec.inputs, *SETTINGS])
                self.error(f"{name} has no parameter {param!r}", where, f"{known}; {signature}")
            elif param in bound:
                self.error(f"{name} gets {param!r} twice", where, signature)
            else:
                bound[param] = value
        missing = [param for param in spec.required if param not in bound]
        if missing and kwargs.keys() <= spec.inputs.keys():
            self.error(f"{name} lacks {', '.join(map(repr, missing))}", where, signature)
        return {param: bound[param] for param in spec.inputs if param in bound}

    def _split_arguments(
        self, name: str, arguments: Mapping[str, Any], where: str | None
    ) -> tuple[dict[str, Value], dict[str, Any]]:
        edges: dict[str, Value] = {}
        constants: dict[str, Any] = {}
        for param, argument in arguments.items():
            if isinstance(argument, (Value, RoleHandle, OperatorHandle, JobHandle)):
                if self._usable(argument, f"{name}({param})", where) and isinstance(
                    argument, Value
                ):
                    edges[param] = argument
            else:
                try:
                    constants[param] = constant(argument)
                except TypeError as error:
                    self.error(
                        f"{name}({param}): {error}",
                        where,
                        "pass values whole, and constants as in JSON",
                    )
        return edges, constants

    def _usable(self, value: object, use: str, where: str | None) -> bool:
        """Return whether `value` can be the source of an edge; if not, record an error."""
        if not isinstance(value, Value):
            remedy = "call it: the value is what the call returns"
            self.error(f"{use} gets {value!r} instead of a value", where, remedy)
        elif value._tracer is not self:
            self.error(
                f"{use} gets {value!r} of another trace",
                where,
                "use values in the flow that made them",
            )
        elif value._op is not None and self.ops[value._op].returns is None:
            what = f"{use} gets what {value._what} returns, which is nothing"
            self.error(
                what, where, f"declare returns=... on operator {value._what}, or leave it out"
            )
        else:
            return True
        return False

    def _lags(
        self, name: str, edges: Mapping[str, Value], lag: Any, where: str | None
    ) -> dict[str, tuple[int, bool]]:
        given = dict(lag) if isinstance(lag, Mapping) else dict.fromkeys(edges, lag)
        if unknown := given.keys() - edges.keys():
            what = f"{name}: lag for {sorted(unknown)}, which take no value of another call"
            self.error(what, where, nearest(sorted(unknown)[0], edges))
        if not edges and not isinstance(lag, Mapping) and lag != 0:
            self.error(
                f"{name}: lag={lag!r}, but it takes no value of another call",
                where,
                "leave lag out",
            )
        found: dict[str, tuple[int, bool]] = {}
        for param in edges:
            one = given.get(param, 0)
            newest = isinstance(one, AtMost)
            source = edges[param]._op
            items = source is not None and by_demand(self.ops[source].returns) is not None
            if newest and self.roles[name.partition(".")[0]].together and not items:
                what = (
                    f"{name}: lag={one!r} for {param!r}, but each rank of a collective "
                    "role would take another value"
                )
                self.error(what, where, f"give it an exact lag: lag={{{param!r}: {one.steps}}}")
            steps, least = (one.steps, 1) if isinstance(one, AtMost) else (one, 0)
            found[param] = (
                count(self.errors, name, "lag of AtMost" if newest else "lag", steps, least, where),
                newest,
            )
        return found

    def _initial(
        self,
        name: str,
        lags: Mapping[str, tuple[int, bool]],
        initial: Mapping[str, Any] | None,
        where: str | None,
    ) -> dict[str, tuple[Any]]:
        found: dict[str, tuple[Any]] = {}
        for param, value in (initial or {}).items():
            if not lags.get(param, (0, False))[0]:
                remedy = (
                    f"give it one: lag={{{param!r}: 1}}" if param in lags else nearest(param, lags)
                )
                self.error(
                    f"{name}: initial for {param!r}, which takes no older value of another call",
                    where,
                    remedy,
                )
                continue
            try:
                found[param] = (constant(value),)
            except TypeError as error:
                self.error(
                    f"{name}: initial for {param!r}: {error}", where, "it is a constant, as in JSON"
                )
        return found

    # ----------------------------------------------------------------------------------------------
    # the whole graph

    def finish(self, target: Flow) -> LogicalGraph:
        """Resolve feedback, check routes, and check the whole graph."""
        for feedback in self.feedbacks:
            if feedback._bound is None:
                remedy = "say what makes it: .bind(job.<role>.<operator>(...))"
                self.error(f"{feedback._what} is never bound", feedback._where, remedy)
        edges: list[Edge] = []
        for pending in self.pending:
            source = pending.value._bound if isinstance(pending.value, Feedback) else pending.value
            if source is None or source._op is None:
                continue
            returns = self.ops[source._op].returns
            wants = self.specs[pending.dst].inputs[pending.param]
            assert returns is not None
            ends = source._op, pending.dst, pending.param, returns, wants
            edge = Edge(
                len(edges), *ends, pending.lag, pending.credits, pending.initial, pending.newest
            )
            self.errors += checks.check_first(
                edge, self.ops[edge.src], self.ops[edge.dst], self.roles, pending.where
            )
            self._check_route(edge, pending.where)
            edges.append(edge)
        callees = {
            other: dict(self.roles[other].services) for call in self.ops for other in call.calls
        }
        graph = LogicalGraph(target.name, tuple(self.ops), tuple(edges), callees)
        for role in [] if self.unknown else self.roles:
            if role not in self.called:
                remedy = (
                    "call one of its operators "
                    f"({', '.join(self.roles[role].operators)}), or remove the role"
                )
                self.error(f"nobody calls role {role!r}", target.where, remedy)
        if not self.errors:
            self.errors += (
                checks.check_cycles(graph)
                or checks.check_runs(graph)
                or checks.check_initial(graph)
            )
        raise_all(list({str(error): error for error in self.errors}.values()))
        return graph

    def _check_route(self, edge: Edge, where: str | None) -> None:
        src = self.ops[edge.src]
        dst = self.ops[edge.dst]
        m = self.roles[src.role].world_size
        n = self.roles[dst.role].world_size
        try:
            route(edge.src_partition, m, edge.dst_partition, n)
        except RouteError as error:
            what = f"{src.label} → {dst.label}({edge.param}): {error.pair}: {error.why}"
            self.error(what, where, error.remedy)
