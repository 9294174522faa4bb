"""The tracer behind a flow's handles: it collects calls, edges, and all errors."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from rolemesh.api.workload import OperatorSpec
from rolemesh.errors import FlowError, RolemeshError, nearest, raise_all
from rolemesh.graph import checks
from rolemesh.graph.call_site import CallSite, Lag
from rolemesh.graph.checks import RoleShape
from rolemesh.graph.flow import (
    Feedback,
    Flow,
    JobHandle,
    OperatorHandle,
    RoleHandle,
    Value,
    place_of,
)
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import RouteError, route

HANDLES = (Value, RoleHandle, OperatorHandle, JobHandle)
"""The classes of arguments that are no constants."""


class _Pending(NamedTuple):
    """An edge whose producer may still be unknown."""

    value: Value
    dst: int
    param: str
    lag: Lag
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

    # ------------------------------------------------------------------ what the handles report

    def role(self, name: str) -> RoleHandle:
        if name not in self.roles and name not in self.unknown:
            self.unknown.add(name)
            where = place_of(sys._getframe())
            self.error(f"the job has no role {name!r}", where, nearest(name, self.roles))
        return RoleHandle(self, name)

    def feedback(self, name: str) -> Feedback:
        made = Feedback(self, name, place_of(sys._getframe()) or "")
        self.feedbacks.append(made)
        return made

    def bind(self, feedback: Feedback, value: object) -> None:
        where = place_of(sys._getframe())
        what = feedback._what
        if feedback._bound is not None:
            self.error(f"{what} is bound twice", where, "bind it once, to what one call returns")
            return
        if isinstance(value, Feedback):
            self.error(f"{what} is bound to a feedback", where, "bind it to what a call returns")
        elif self._usable(value, f"{what}.bind", where):
            feedback._bound = value
            return
        feedback._bound = Value(self, None, what)

    def call(
        self,
        role: str,
        operator: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> Value:
        where = place_of(sys._getframe())
        site = CallSite(f"{role}.{operator}", where, self.errors)
        if role not in self.roles:
            return Value(self, None, site.name)
        self.called.add(role)
        shape = self.roles[role]
        spec = shape.operators.get(operator)
        if spec is None:
            remedy = nearest(operator, shape.operators)
            site.error(f"role {role!r} has no operator {operator!r}", remedy)
            return Value(self, None, site.name)
        arguments = site.arguments(spec, args, kwargs)
        every, at = site.runs(settings)
        edges = self._edges(site, arguments)
        others = {name: each for name, each in arguments.items() if not isinstance(each, HANDLES)}
        constants = site.constants(others)
        given = settings["credits"]
        credits = self.credits if given is None else site.count("credits", given, 1)
        lags = site.lags(edges, settings["lag"], shape.together, self.ops)
        initial = site.initial(lags, settings["initial"])
        newest = [param for param, lag in lags.items() if lag.newest]
        self.errors += checks.check_shared(site.name, spec, shape, edges, newest, where)
        callees = site.callees(role, settings["calls"], self.roles)
        self.called |= {*callees}
        op = len(self.ops)
        again = sum(call.role == role and call.operator == operator for call in self.ops)
        label = f"{site.name}#{again + 1}" if again else site.name
        self.pending += [
            _Pending(value, op, param, lags[param], initial.get(param, ()), credits, where)
            for param, value in edges.items()
        ]
        runs = every, at, where or "", callees
        made = OpCall(op, role, operator, label, spec.returns, spec.streaming, constants, *runs)
        self.ops.append(made)
        self.specs.append(spec)
        return Value(self, op, label)

    def _edges(self, site: CallSite, arguments: Mapping[str, Any]) -> dict[str, Value]:
        """Return the arguments that are values of other calls."""
        found: dict[str, Value] = {}
        for param, argument in arguments.items():
            use = f"{site.name}({param})"
            if isinstance(argument, HANDLES) and self._usable(argument, use, site.where):
                found[param] = argument
        return found

    def _usable(self, value: object, use: str, where: str | None) -> TypeGuard[Value]:
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

    # -------------------------------------------------------------------------- the whole graph

    def finish(self, target: Flow) -> LogicalGraph:
        """Resolve feedback, check routes, and check the whole graph."""
        for feedback in self.feedbacks:
            if feedback._bound is None:
                remedy = "say what makes it: .bind(job.<role>.<operator>(...))"
                self.error(f"{feedback._what} is never bound", feedback._where, remedy)
        edges = self._resolved()
        callees = {
            other: dict(self.roles[other].services) for call in self.ops for other in call.calls
        }
        graph = LogicalGraph(target.name, tuple(self.ops), edges, callees)
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

    def _resolved(self) -> tuple[Edge, ...]:
        """Return the edges, each with its producer, after a check of its route."""
        edges: list[Edge] = []
        for pending in self.pending:
            source = pending.value._bound if isinstance(pending.value, Feedback) else pending.value
            if source is None or source._op is None:
                continue
            returns = self.ops[source._op].returns
            wants = self.specs[pending.dst].inputs[pending.param]
            assert returns is not None
            ends = source._op, pending.dst, pending.param, returns, wants
            steps, newest = pending.lag
            edge = Edge(len(edges), *ends, steps, pending.credits, pending.initial, newest)
            self.errors += checks.check_first(
                edge, self.ops[edge.src], self.ops[edge.dst], self.roles, pending.where
            )
            self._check_route(edge, pending.where)
            edges.append(edge)
        return tuple(edges)

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
