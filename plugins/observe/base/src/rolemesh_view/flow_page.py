"""The page of the flow: its picture, with where the time of roles and edges goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolemesh_facts.critical import Critical
from rolemesh_facts.graph import HEIGHT, WIDTH, draw
from rolemesh_facts.labels import meaning, use_label
from rolemesh_facts.palette import PHASES, phase_of
from rolemesh_facts.time_use import Use
from rolemesh_recorder.lines import FlowFile
from rolemesh_view.edge_rows import edge_rows, edge_texts
from rolemesh_view.predictions import change
from rolemesh_view.viewed import Ahead, Look, Viewed

__all__ = ["flow", "picture"]

COLOURS = {
    "operator": "computing", "edge": "waiting", "call": "calling", "turn": "turn", "group": "gathering",
    "memory": "memory", "grant": "idle", "snapshot": "saving", "start": "starting",
}  # fmt: skip
"""The phase whose colour a kind of station has; others have that of ``engine``."""
LEAST = 0.0005
"""Share below which the page leaves a station or a use of time out."""
UNREAD = Look(0, 0, {}, {}, [], None, [])
"""The look at a run whose records the viewer still reads."""
SHOWN, MOST_USES = 12, 8
"""Numbers of stations of the critical path, and of uses of a role's time, that the page lists."""


def flow(run: Viewed, query: Any) -> dict[str, Any]:
    """Return the picture of the flow, the state of its edges, the critical path, and the use of time by role."""
    found, seen = run.facts.flow(), run.look_soon()
    ahead = run.ahead_soon() if seen is not None else None
    look = seen or UNREAD
    critical = [each for each in look.critical.stations[:SHOWN] if each.share >= LEAST] if look.critical else []
    drawn = {kind for role, use in look.roles.items() for kind, _, _ in bars(use, found, role)}
    return {
        **run.reading(seen, ahead),
        "beginnings": run.beginnings(),
        "picture": picture(found, look) if found else None,
        "edges": edge_rows(found, look) if found else [],
        "critical": critical,
        "seconds": (look.critical.until - look.critical.since) / 1e6 if look.critical else 0.0,
        "since_start": look.critical is not None and look.critical.since > look.since,
        "colours": COLOURS,
        "words": (words := {kind: meaning(kind) for kind in PHASES}),
        "legend": {kind: label for kind, label in words.items() if kind in drawn},
        "roles": {role: _uses(found, role, use) for role, use in sorted(look.roles.items())},
        "rate": look.rate,
        "recent_s": look.recent_s,
        "ahead": ahead or Ahead(None, ()),
        "change": change,
        "ranges": found.ranges if found else {},
        "size": (WIDTH, HEIGHT),
    }


def picture(flow: FlowFile, look: Look) -> dict[str, Any]:
    """Return nodes and edges with their places, texts, and share of the critical path."""
    sizes = look.sizes or flow.sizes
    labels = {f"op {op.id}": op.label for op in flow.ops}
    first = {op.role: f"op {op.id}" for op in reversed(flow.ops)}
    for role in flow.sizes:
        if role not in first:
            first[role] = f"role {role}"
            labels[f"role {role}"] = role
    calls = [(f"op {op.id}", first[callee]) for op in flow.ops for callee in op.calls if callee in first]
    told = {op.role for op in flow.ops if op.calls}
    others = [pair for pair in flow.callers if pair[0] not in told and {*pair} <= first.keys()]
    calls += [(first[caller], first[callee]) for caller, callee in others]  # of services
    edges = [(f"op {edge.src}", f"op {edge.dst}") for edge in flow.edges]
    drawing = draw(list(labels), edges + calls, len(edges))
    on_op, on_edge, on_role = _shares(look.critical)
    uses, states = {edge.edge: edge for edge in look.edges}, {state.edge: state for state in look.states}
    roles = {f"op {op.id}": op.role for op in flow.ops} | {
        key: key.removeprefix("role ") for key in labels if key.startswith("role ")
    }
    nodes = [
        {
            "label": label, "x": drawing.places[key][0], "y": drawing.places[key][1], "role": roles[key],
            "ranks": sizes.get(roles[key], 0),
            "workload": flow.workloads.get(roles[key], ""), "bars": bars(look.roles.get(roles[key]), flow, roles[key]),
            "share": (on_op.get(int(key[3:]), 0.0) if key.startswith("op ") else 0.0)
            + (on_role.get(roles[key], 0.0) if first.get(roles[key]) == key else 0.0),
        }
        for key, label in labels.items()
    ]  # fmt: skip
    lines: list[dict[str, Any]] = []
    for at, line in enumerate(drawing.lines):
        if at >= len(edges):
            said = {"text": "", "title": "calls", "more": [], "share": 0.0, "kind": "call"}
            caller, callee = calls[at - len(edges)]
            lines.append({"line": line, **said, "said": f"{labels[caller]} calls {labels[callee]}"})
            continue
        edge = flow.edges[at]
        more = edge_texts(edge, states.get(edge.id), uses.get(edge.id))
        name = f"{flow.ops[edge.src].label} → {flow.ops[edge.dst].label}: {edge.param}"
        lines.append(
            {
                "line": line, "text": edge.param, "more": more, "share": on_edge.get(edge.id, 0.0),
                "said": " · ".join((name, *more)),
                "kind": "edge", "title": f"{edge.param}: {edge.partition}",
            }
        )  # fmt: skip
    return {"nodes": nodes, "lines": lines, "width": drawing.width, "height": drawing.height}


def bars(use: Use | None, flow: FlowFile | None, role: str) -> list[tuple[str, float, float]]:
    """Return the use of a role's time as (kind, begin, length), in shares of a bar."""
    if use is None or not use.wall:
        return []
    kinds: dict[str, float] = {}
    for name, share in use.shares.items():
        kind = phase_of(flow, role, name)
        kinds[kind] = kinds.get(kind, 0.0) + share
    found, at = [], 0.0
    for kind in sorted(kinds, key=lambda kind: (kind != "computing", -kinds[kind])):
        found.append((kind, at, min(kinds[kind], max(0.0, 1.0 - at))))
        at += kinds[kind]
    return found


def _uses(flow: FlowFile | None, role: str, use: Use) -> list[tuple[str, float, str]]:
    """Return the uses of a role's time in words, with shares and colours, the largest share first."""
    found = [(name, share) for name, share in use.shares.items() if share >= LEAST]
    return [(use_label(flow, role, name), share, phase_of(flow, role, name)) for name, share in found[:MOST_USES]]


def _shares(critical: Critical | None) -> tuple[Mapping[int, float], Mapping[int, float], Mapping[str, float]]:
    """Return the shares of the critical path by operator, by edge, and by role for all else."""
    ops: dict[int, float] = {}
    edges: dict[int, float] = {}
    roles: dict[str, float] = {}
    for station in critical.stations if critical else ():
        if station.op >= 0:
            ops[station.op] = ops.get(station.op, 0.0) + station.share
        elif station.role:
            roles[station.role] = roles.get(station.role, 0.0) + station.share
        if station.edge >= 0:
            edges[station.edge] = edges.get(station.edge, 0.0) + station.share
    return ops, edges, roles
