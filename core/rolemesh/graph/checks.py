"""Checks of a flow's parameters, of a call's settings, and of a whole graph. Each check returns its
errors."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from rolemesh.api.partition import Split
from rolemesh.api.service import ServiceSpec
from rolemesh.api.workload import OperatorSpec
from rolemesh.errors import FlowError, RolemeshError, nearest
from rolemesh.graph.flow import Flow, Value
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import by_demand
from rolemesh.graph.schedule import Activity, delay, shortest_cycle, takes_first, zero_lag_cycle


class RoleShape(msgspec.Struct, frozen=True):
    """The facts about a role that tracing needs.

    - `together`: all its ranks must take the same values.
    - `stateful`: its ranks keep state from step to step.
    - `repeats`: calls are repeated although the role is stateful.
    """

    world_size: int
    operators: Mapping[str, OperatorSpec]
    together: bool = False
    stateful: bool = False
    repeats: bool = False
    services: Mapping[str, ServiceSpec] = {}


def check_params(target: Flow, params: Mapping[str, Any]) -> list[RolemeshError]:
    """Check that the flow's function can be called with the job and `params`."""
    function = target.function
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        what = f"flow {target.name!r} is a generator or coroutine"
        return [
            FlowError(
                what, where=target.where, remedy="write a plain function that calls operators"
            )
        ]
    signature = inspect.signature(function)
    shown = f"it is {target.name}{signature}"
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        what = f"flow {target.name!r} does not take the job"
        return [FlowError(what, where=target.where, remedy=f"write def {target.name}(job)")]
    known = {
        p.name: p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    errors: list[RolemeshError] = []
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in params.keys() - known.keys():
            what = f"flow {target.name!r} has no parameter {name!r} (params in the job file)"
            errors.append(
                FlowError(what, where=target.where, remedy=f"{nearest(name, known)}; {shown}")
            )
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in params:
            what = f"flow {target.name!r} needs parameter {name!r}"
            errors.append(
                FlowError(
                    what, where=target.where, remedy=f"set params.{name} in the job file; {shown}"
                )
            )
    return errors


def check_cycles(graph: LogicalGraph) -> list[RolemeshError]:
    """Find a cycle of calls within one step. The error shows it, with the edge that could break
    it."""
    cycle = zero_lag_cycle(graph)
    if cycle is None:
        return []
    pairs = list(pairwise(cycle))
    back = next(
        e for e in graph.edges if delay(e) == 0 and e.src >= e.dst and (e.src, e.dst) in pairs
    )
    path = " → ".join(graph.ops[op].label for op in cycle)
    call = graph.ops[back.dst]
    remedy = f"let {call.label} take an older value: lag={{{back.param!r}: 1}} at {call.where}"
    return [FlowError(f"a cycle without lag: {path}", where=call.where, remedy=remedy)]


def check_runs(graph: LogicalGraph) -> list[RolemeshError]:
    """Find calls that never run, however long the job is. Calls that only wait for such a call are
    not reported."""
    activity = Activity(graph)
    never = set(activity.never())
    after = {
        op.id: [edge.dst for edge in graph.outputs(op.id) if not edge.initial] for op in graph.ops
    }
    errors: list[RolemeshError] = []
    told: set[int] = set()
    for op in sorted(never):
        call = graph.ops[op]
        if cycle := shortest_cycle(after, op):
            if not told & set(cycle):
                path = " → ".join(graph.ops[i].label for i in cycle)
                what = (
                    f"{call.label} never runs: it waits for its own older value "
                    f"({path}), and there is no first"
                )
                remedy = (
                    "give the first value in the flow (initial={'param': value}), or let "
                    "the loop start from a call "
                    "that takes no input, e.g. one that returns the initial weights"
                )
                errors.append(FlowError(what, where=call.where, remedy=remedy))
            told |= set(cycle)
        elif not any(edge.src in never and not edge.initial for edge in graph.inputs(op)):
            inputs = [
                f"{graph.ops[e.src].label} {_beat(graph, e.src)}, lag={e.lag_shown}"
                for e in graph.inputs(op)
            ]
            what = (
                f"{call.label} never runs: it has {_beat(graph, op)}, its inputs "
                f"{'; '.join(inputs)}"
            )
            errors.append(
                FlowError(what, where=call.where, remedy="choose every= and at= so that they meet")
            )
    return errors


def check_initial(graph: LogicalGraph) -> list[RolemeshError]:
    """Find edges with an initial value or a bounded lag whose two calls run at steps that never
    match later."""
    activity = Activity(graph)
    return [
        FlowError(
            f"{graph.ops[edge.dst].label} has {_beat(graph, edge.dst)}, which does not meet "
            f"{edge.param} of "
            f"{graph.ops[edge.src].label} with {_beat(graph, edge.src)}, lag={edge.lag_shown}",
            where=graph.ops[edge.dst].where,
            remedy="choose every= and at= so that they meet"
            if not edge.newest
            else f"let it be lag=AtMost({graph.ops[edge.src].every - 1}) at least: values "
            "come no more often",
        )
        for edge in graph.edges
        if (edge.initial or edge.newest) and not takes_first(edge) and activity.apart(edge)
    ]


def check_shared(
    name: str,
    spec: OperatorSpec,
    role: RoleShape,
    edges: Collection[str],
    newest: Collection[str],
    where: str | None,
) -> list[RolemeshError]:
    """Check that a call of `spec` may share the rows of an input by demand, if it does.

    `edges` are the parameters that take values of other calls; `newest` are those with a bounded
    lag.
    """
    shared = next((param for param, partition in spec.inputs.items() if by_demand(partition)), None)
    if shared is None:
        return []
    of_who = "its ranks have state, which would depend on who does what"
    exact = f"give it an exact lag: lag={{{shared!r}: 1}}"
    wrong = [
        (role.together, "its ranks are a collective group", "take it as Split() or Broadcast()"),
        (role.stateful, of_who, "keep the state in another role"),
        (
            shared not in edges,
            "it takes no value of another call",
            f"pass {shared!r} what a call returns",
        ),
        (shared in newest, "each rank would take another value", exact),
    ]
    what = f"{name} shares the rows of {shared!r} out by demand, but"
    return [FlowError(f"{what} {why}", where=where, remedy=to) for is_so, why, to in wrong if is_so]


def check_first(
    edge: Edge, src: OpCall, dst: OpCall, roles: Mapping[str, RoleShape], where: str | None
) -> list[RolemeshError]:
    """Check that a call may take the rows that are finished first, out of rows shared by demand, if
    it does."""
    if not takes_first(edge):
        return []
    role = roles[dst.role]
    others = edge.dst_partition != Split() and role.world_size > 1
    again = by_demand(edge.dst_partition) is not None
    repeats = dst.returns is None and (not role.stateful or role.repeats)
    state = "give the role state, or return something"
    wrong = [
        (others, "each of its ranks would take other rows", "take them as Split()"),
        (src.every * dst.every != 1, "the calls do not run at every step", "leave every= out"),
        (bool(edge.initial), "there is an initial value", "leave initial out"),
        (dst.streaming, "it takes chunks", "take the rows whole"),
        (again, "it shares them out again", "take them as Split()"),
        (src.role == dst.role, "it is of the same role", "take them in another role"),
        (repeats, "a rank that is restarted repeats it", state),
    ]
    what = f"{dst.label} takes what is finished first of {edge.param!r}, but"
    return [
        FlowError(f"{what} {why}", where=where, remedy=f"{remedy}; or give it an exact lag")
        for is_so, why, remedy in wrong
        if is_so
    ]


def constant(value: Any) -> Any:
    """Return `value` as plain data (None, bool, int, float, str, lists, dicts with str keys), equal
    in every process.

    Raises `TypeError` for anything else.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [constant(item) for item in value]
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"a constant has the key {odd[0]!r}, which is not a string")
        return {key: constant(item) for key, item in value.items()}
    if isinstance(value, Value):
        raise TypeError(f"{value!r} is inside a list or dict")
    raise TypeError(f"a constant of type {type(value).__name__} does not travel between processes")


def _beat(graph: LogicalGraph, op: int) -> str:
    return f"every={graph.ops[op].every}, at={graph.ops[op].at}"
