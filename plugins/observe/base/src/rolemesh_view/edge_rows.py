"""The state of edges as texts: in the picture of a flow, and in the table below it. Pure."""

from __future__ import annotations

from rolemesh_facts.edge_states import EdgeState
from rolemesh_facts.time_use import EdgeUse
from rolemesh_recorder.lines import FlowEdge, FlowFile
from rolemesh_view.text import percent
from rolemesh_view.viewed import Look

__all__ = ["bytes_text", "edge_rows", "edge_texts", "number_text"]

LEAST = 0.005
"""Share of the time below which the picture does not show a wait."""
LONGEST = 22
"""Characters of a line that fit between two operators."""


def edge_texts(edge: FlowEdge, state: EdgeState | None, use: EdgeUse | None) -> list[str]:
    """Return the lines of what the picture says about an edge: its state, and the waits on it."""
    said = [f"lag {edge.lag}"] if edge.lag != "0" else []
    said += [f"queue {state.queue}"] if state and state.queue is not None else []
    said += [bytes_text(state.bytes_s)] if state and state.bytes_s else []
    said += [f"saves {percent(state.saved)}"] if state and state.saved and state.saved > 0 else []
    said += [f"waits {percent(use.waiting)}"] if use and use.waiting >= LEAST else []
    said += [f"blocked {percent(use.blocked)}"] if use and use.blocked >= LEAST else []
    lines: list[str] = []
    for each in said:
        if lines and len(lines[-1]) + len(each) + 3 <= LONGEST:
            lines[-1] += f" · {each}"
        else:
            lines.append(each)
    return lines


def edge_rows(flow: FlowFile, look: Look) -> list[dict[str, str]]:
    """Return the numbers of each edge as texts; "" for those that the record does not have."""
    uses = {use.edge: use for use in look.edges}
    rows: list[dict[str, str]] = []
    for edge, state in zip(flow.edges, look.states, strict=False):
        use = uses.get(edge.id)
        rows.append(
            {
                "name": f"{flow.ops[edge.src].label} → {flow.ops[edge.dst].label}", "param": edge.param,
                "queue": _text(state.queue), "under_way": _text(state.under_way),
                "credits": "by bytes" if state.credits == -1 else _text(state.credits),
                "bytes_s": bytes_text(state.bytes_s), "values_s": number_text(state.values_s),
                "staleness": number_text(state.staleness), "waiting": percent(use.waiting if use else None),
                "blocked": percent(use.blocked if use else None),
                "saved": percent(state.saved),
            }
        )  # fmt: skip
    return rows


def bytes_text(nbytes: float | None) -> str:
    """Return bytes per second with their unit; "" for None."""
    if nbytes is None:
        return ""
    for unit in ("B/s", "kB/s", "MB/s"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB/s"


def number_text(value: float | None) -> str:
    """Return a number with three digits; "" for None."""
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _text(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
