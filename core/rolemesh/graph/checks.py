"""What can be wrong with a flow's parameters, a call's settings, and a whole graph: each check returns its errors."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from rolemesh.errors import FlowError, RolemeshError, nearest
from rolemesh.graph.flow import Flow, Value
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity, zero_lag_cycle

__all__ = ["check_cycles", "check_params", "check_runs", "constant", "count"]


def check_params(target: Flow, params: Mapping[str, Any]) -> list[RolemeshError]:
    """Whether the flow's function can be called with the job and `params`."""
    function = target.function
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        what = f"flow {target.name!r} is a generator or coroutine"
        return [FlowError(what, where=target.where, remedy="write a plain function that calls operators")]
    signature = inspect.signature(function)
    shown = f"it is {target.name}{signature}"
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        what = f"flow {target.name!r} does not take the job"
        return [FlowError(what, where=target.where, remedy=f"write def {target.name}(job)")]
    known = {p.name: p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    errors: list[RolemeshError] = []
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in params.keys() - known.keys():
            what = f"flow {target.name!r} has no parameter {name!r} (params in the job file)"
            errors.append(FlowError(what, where=target.where, remedy=f"{nearest(name, known)}; {shown}"))
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in params:
            what = f"flow {target.name!r} needs parameter {name!r}"
            errors.append(FlowError(what, where=target.where, remedy=f"set params.{name} in the job file; {shown}"))
    return errors


def check_cycles(graph: LogicalGraph) -> list[RolemeshError]:
    """A cycle of calls within one step, printed, with the edge that could break it."""
    cycle = zero_lag_cycle(graph)
    if cycle is None:
        return []
    pairs = list(pairwise(cycle))
    back = next(e for e in graph.edges if e.lag == 0 and e.src >= e.dst and (e.src, e.dst) in pairs)
    path = " → ".join(graph.ops[op].label for op in cycle)
    call = graph.ops[back.dst]
    remedy = f"let {call.label} take an older value: lag={{{back.param!r}: 1}} at {call.where}"
    return [FlowError(f"a cycle without lag: {path}", where=call.where, remedy=remedy)]


def check_runs(graph: LogicalGraph) -> list[RolemeshError]:
    """Calls that never run, however long the job is; those that only wait for such a call are not named."""
    never = set(Activity(graph).never())
    errors: list[RolemeshError] = []
    told: set[int] = set()
    for op in sorted(never):
        call = graph.ops[op]
        if cycle := _data_cycle(graph, op):
            if not told & set(cycle):
                path = " → ".join(graph.ops[i].label for i in cycle)
                what = f"{call.label} never runs: it waits for its own older value ({path}), and there is no first"
                remedy = "let the loop start from a call that takes no input, e.g. one that returns the initial weights"
                errors.append(FlowError(what, where=call.where, remedy=remedy))
            told |= set(cycle)
        elif not any(edge.src in never for edge in graph.inputs(op)):
            inputs = [f"{graph.ops[e.src].label} {_beat(graph, e.src)}, lag={e.lag}" for e in graph.inputs(op)]
            what = f"{call.label} never runs: it has {_beat(graph, op)}, its inputs {'; '.join(inputs)}"
            errors.append(FlowError(what, where=call.where, remedy="choose every= and at= so that they meet"))
    return errors


def count(errors: list[RolemeshError], name: str, setting: str, value: object, least: int, where: str | None) -> int:
    """`value` as an integer of at least `least`; if it is none, an error is added and `least` returned."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    what = f"{name}: {setting} is {value!r}"
    errors.append(FlowError(what, where=where, remedy=f"use an integer of at least {least}"))
    return least


def constant(value: Any) -> Any:
    """`value` as plain data (None, bool, int, float, str, lists, dicts with str keys), equal in every process.

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


def _data_cycle(graph: LogicalGraph, start: int) -> tuple[int, ...] | None:
    """The shortest closed path of edges through `start`."""
    queue: deque[tuple[int, ...]] = deque([(start,)])
    seen: set[int] = set()
    while queue:
        path = queue.popleft()
        for edge in graph.outputs(path[-1]):
            if edge.dst == start:
                return (*path, start)
            if edge.dst not in seen:
                seen.add(edge.dst)
                queue.append((*path, edge.dst))
    return None
