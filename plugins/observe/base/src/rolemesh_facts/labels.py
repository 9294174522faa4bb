"""Names of the records in words for a reader. Pure."""

from __future__ import annotations

from collections.abc import Collection

from rolemesh_recorder.lines import FlowEdge, FlowFile, FlowOp

__all__ = ["GOODPUT", "edge_label", "meaning", "phase_label", "use_label"]

GOODPUT = (
    "the share of the job's time that is left without its start, its stop and its recoveries, "
    "and without what a failed or stopped job did after its last checkpoint on disk"
)
_USES = {
    "computing": "computes",
    "saving": "saves snapshots",
    "idle": "waits for other ranks or the master",
    "memory": "waits for memory",
    "turn": "waits for its turn",
    "loading": "loads, or makes room",
    "gathering": "waits for its group",
    "calling": "waits for an answer",
    "serving": "serves calls",
    "following": "waits for callers",
    "engine": "engine",
    "starting": "starts",
    "setup": "runs setup",
    "restoring": "restores its state",
}


def meaning(phase: str) -> str:
    """Return what a phase means in a legend, whatever the operator or edge is."""
    return {"waiting": "waits for a value", "blocked": "waits for a consumer"}.get(phase) or _USES.get(phase, phase)


def edge_label(flow: FlowFile, edge: FlowEdge) -> str:
    """Return ``source.make → middle.work (batch)``."""
    ends = [flow.ops[op].label if 0 <= op < len(flow.ops) else "?" for op in (edge.src, edge.dst)]
    return f"{' → '.join(ends)} ({edge.param})"


def use_label(flow: FlowFile | None, role: str, name: str) -> str:
    """Return what a name of an account means for ranks of `role`.

    ``edge 0`` becomes ``waits for batch of source.make``, or ``waits until sink.take takes batch``.
    """
    kind, _, number = name.partition(" ")
    if name == "idle" and flow is not None:
        return _idle(flow, role)
    if kind != "edge" or flow is None or not number.isdigit() or int(number) >= len(flow.edges):
        return _USES.get(name, name)
    edge = flow.edges[int(number)]
    source, target = (flow.ops[op] if 0 <= op < len(flow.ops) else FlowOp(op, "?", "?") for op in (edge.src, edge.dst))
    return _taken(edge, source) if target.role == role else _sent(edge, target)


def phase_label(flow: FlowFile | None, role: str, phase: str, op: int = -1, edge: int = -1) -> str:
    """Return what a piece of a rank's lane means: the operator that computes, or what the rank waits for."""
    if phase == "computing" and flow is not None and 0 <= op < len(flow.ops):
        return flow.ops[op].label
    if phase in ("waiting", "blocked") and flow is not None and 0 <= edge < len(flow.edges):
        way = flow.edges[edge]  # of an edge within a role, only the phase says which end waits
        at = way.src if phase == "waiting" else way.dst
        other = flow.ops[at] if 0 <= at < len(flow.ops) else FlowOp(at, "?", "?")
        return _taken(way, other) if phase == "waiting" else _sent(way, other)
    if phase == "blocked" and edge < 0:
        return _USES["memory"]
    return use_label(flow, role, phase) if phase == "idle" else meaning(phase)


def _taken(edge: FlowEdge, source: FlowOp) -> str:
    return f"waits for {edge.param} of {source.label}"


def _sent(edge: FlowEdge, target: FlowOp) -> str:
    return f"waits until {target.label} takes {edge.param}"


def _idle(flow: FlowFile, role: str) -> str:
    """Return what a rank of `role` waits for that may not run further: the master lets it run a few seconds' steps
    ahead of the rank that is behind all others.

    A role cannot be ahead of those whose values of the same step it takes at each step. Without other roles, only its
    own ranks or the master remain.
    """
    ways = [(flow.ops[edge.src], flow.ops[edge.dst], edge.lag) for edge in flow.edges]
    bound = [(dst.role, src.role) for src, dst, lag in ways if lag == "0" and src.every == dst.every == 1]
    before, after = _reached(role, bound), _reached(role, [(src.role, dst.role) for src, dst, _ in ways])
    behind = {op.role for op in flow.ops} - before - {role}
    if behind and behind <= after:
        return "ahead of its consumers"
    return "waits for the master" if not behind and flow.sizes.get(role) == 1 else _USES["idle"]


def _reached(role: str, pairs: Collection[tuple[str, str]]) -> set[str]:
    """Return the roles to which a way along `pairs` leads from `role`."""
    found, new = set[str](), {role}
    while new:
        found |= (new := {to for at, to in pairs if at in new} - found)
    return found
