"""Names of the records in words for a reader. Pure."""

from __future__ import annotations

from rolemesh_recorder.lines import FlowEdge, FlowFile, FlowOp

__all__ = ["GOODPUT", "edge_label", "meaning", "phase_label", "use_label"]

GOODPUT = (
    "the share of the job's time that is left without its start, its stop and its recoveries, "
    "and without what a failed or stopped job did after its last checkpoint on disk"
)
_USES = {
    "computing": "computes",
    "saving": "saves snapshots",
    "idle": "ahead of its consumers",
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
    if kind != "edge" or flow is None or not number.isdigit() or int(number) >= len(flow.edges):
        return _USES.get(name, name)
    edge = flow.edges[int(number)]
    source, target = (flow.ops[op] if 0 <= op < len(flow.ops) else FlowOp(op, "?", "?") for op in (edge.src, edge.dst))
    if target.role == role:
        return f"waits for {edge.param} of {source.label}"
    return f"waits until {target.label} takes {edge.param}"


def phase_label(flow: FlowFile | None, role: str, phase: str, op: int = -1, edge: int = -1) -> str:
    """Return what a piece of a rank's lane means: the operator that computes, or what the rank waits for."""
    if phase == "computing" and flow is not None and 0 <= op < len(flow.ops):
        return flow.ops[op].label
    if phase in ("waiting", "blocked") and edge >= 0:
        return use_label(flow, role, f"edge {edge}")
    return _USES.get(phase, phase)
