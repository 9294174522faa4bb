"""The traced flow as SVG: operators in columns, from the first producer to the last consumer. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh_facts.time_use import EdgeUse
from rolemesh_recorder.lines import FlowEdge, FlowFile
from rolemesh_report.text import clean, share, svg

__all__ = ["flow_picture"]

BOX_W, BOX_H, GAP_X, GAP_Y, EDGE = 190, 58, 130, 34, 24
LOOP = 26
"""Height in pixels that each edge to an earlier operator needs below the others."""


def flow_picture(flow: FlowFile, path: Mapping[tuple[str, int], float], uses: Mapping[int, EdgeUse]) -> str:
    """Return the flow. `path`: share of the critical path by ("op" or "edge", number); `uses`: waits by edge."""
    columns = _columns(flow)
    at: dict[int, tuple[int, int]] = {}
    rows: dict[int, int] = {}
    for op in flow.ops:
        column = columns[op.id]
        at[op.id] = EDGE + column * (BOX_W + GAP_X), EDGE + rows.get(column, 0) * (BOX_H + GAP_Y)
        rows[column] = rows.get(column, 0) + 1
    floor = EDGE + max(rows.values(), default=0) * (BOX_H + GAP_Y)
    width = 2 * EDGE + (max(rows, default=0) + 1) * (BOX_W + GAP_X) - GAP_X
    parts, loops = [], 0
    for edge in flow.edges:
        if edge.src not in at or edge.dst not in at:
            continue
        back = columns[edge.dst] <= columns[edge.src]
        loops += back
        parts.append(_edge(edge, at, floor + loops * LOOP if back else None, path, uses.get(edge.id)))
    for op in flow.ops:
        parts.append(_box(flow, op.id, at[op.id], path.get(("op", op.id), 0.0)))
    height = floor + (loops + 1) * LOOP if loops else max(0, floor - GAP_Y) + EDGE
    return svg(width, height, parts)


def _columns(flow: FlowFile) -> dict[int, int]:
    """Return the length of the longest way to each operator, over edges that lead to later operators."""
    columns = {op.id: 0 for op in flow.ops}
    for op in flow.ops:
        for edge in flow.edges:
            if edge.dst == op.id and edge.src in columns and edge.src < op.id:
                columns[op.id] = max(columns[op.id], columns[edge.src] + 1)
    return columns


def _box(flow: FlowFile, number: int, at: tuple[int, int], part: float) -> str:
    op = next(op for op in flow.ops if op.id == number)
    x, y = at
    size = flow.sizes.get(op.role, 0)
    below = f"{size} rank{'s' * (size != 1)}" + (f" · every {op.every} steps" if op.every > 1 else "")
    told = f"{share(part)} of the critical path" if part >= 0.005 else ""
    style = f' style="fill-opacity:{0.1 + 0.35 * part:.2f}"' if told else ""
    return (
        f'<g><rect x="{x}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="6" class="op{" hot" * bool(told)}"{style}/>'
        f'<text x="{x + 10}" y="{y + 18}" class="b">{clean(op.label, 26)}</text>'
        f'<text x="{x + 10}" y="{y + 34}" class="s">{clean(below)}</text>'
        f'<text x="{x + 10}" y="{y + 50}" class="s">{told}</text></g>'
    )


def _edge(
    edge: FlowEdge,
    at: Mapping[int, tuple[int, int]],
    floor: int | None,
    path: Mapping[tuple[str, int], float],
    use: EdgeUse | None,
) -> str:
    (sx, sy), (dx, dy) = at[edge.src], at[edge.dst]
    if floor is None:
        x1, y1, x2, y2 = sx + BOX_W, sy + BOX_H // 2, dx, dy + BOX_H // 2
        middle = (x1 + x2) // 2
        way, tx, ty = f"M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}", middle, (y1 + y2) // 2
        head = f"M{x2},{y2} l-8,-4 v8 z"
    else:
        x1, x2, y1, y2 = sx + BOX_W // 2 + 14, dx + BOX_W // 2 - 14, sy + BOX_H, dy + BOX_H
        way, tx, ty = f"M{x1},{y1} C{x1},{floor} {x2},{floor} {x2},{y2}", (x1 + x2) // 2, (floor * 3 + y1) // 4
        head = f"M{x2},{y2} l-4,8 h8 z"
    above = edge.param + (f" · lag {edge.lag}" if edge.lag != "0" else "")
    waits = []
    if use is not None and use.waiting >= 0.005:
        waits.append(f"waiting {share(use.waiting)}")
    if use is not None and use.blocked >= 0.005:
        waits.append(f"blocked {share(use.blocked)}")
    part = path.get(("edge", edge.id), 0.0)
    hot = " hot" if part >= 0.005 else ""
    tip = f"{edge.param}: {edge.partition}" + (f"; {share(part)} of the critical path" if hot else "")
    return (
        f'<g><title>{clean(tip)}</title><path d="{way}" class="edge{hot}"/><path d="{head}" class="head{hot}"/>'
        f'<text x="{tx}" y="{ty - 5}" class="s m">{clean(above, 24)}</text>'
        f'<text x="{tx}" y="{ty + 13}" class="s m w">{clean(" · ".join(waits))}</text></g>'
    )
