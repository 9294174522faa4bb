"""The traced flow as SVG: operators in columns, from the first producer to the last consumer. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh_facts.graph import HEIGHT, WIDTH, Line, draw
from rolemesh_facts.time_use import EdgeUse
from rolemesh_recorder.lines import FlowEdge, FlowFile, FlowOp
from rolemesh_report.text import clean, share, svg

__all__ = ["flow_picture"]

TIPS = "".join(
    f'<marker id="tip{hot}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
    f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z" class="head {hot}"/></marker>'
    for hot in ("", "hot")
)


def flow_picture(flow: FlowFile, path: Mapping[tuple[str, int], float], uses: Mapping[int, EdgeUse]) -> str:
    """Return the flow. `path`: share of the critical path by ("op" or "edge", number); `uses`: waits by edge."""
    ops = {f"{op.id}": op for op in flow.ops}
    edges = [edge for edge in flow.edges if {f"{edge.src}", f"{edge.dst}"} <= ops.keys()]
    drawing = draw(list(ops), [(f"{edge.src}", f"{edge.dst}") for edge in edges])
    parts = [f"<defs>{TIPS}</defs>"]
    parts += [_edge(edge, line, path, uses.get(edge.id)) for edge, line in zip(edges, drawing.lines, strict=True)]
    parts += [_box(flow, op, drawing.places[key], path.get(("op", op.id), 0.0)) for key, op in ops.items()]
    return svg(drawing.width, drawing.height, parts)


def _box(flow: FlowFile, op: FlowOp, at: tuple[int, int], part: float) -> str:
    x, y = at
    size = flow.sizes.get(op.role, 0)
    below = f"{size} rank{'s' * (size != 1)}" + (f" · every {op.every} steps" if op.every > 1 else "")
    told = f"{share(part)} of the critical path" if part >= 0.005 else ""
    style = f' style="fill-opacity:{0.1 + 0.35 * part:.2f}"' if told else ""
    return (
        f'<g><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" class="op{" hot" * bool(told)}"{style}/>'
        f'<text x="{x + 10}" y="{y + 28}" class="b">{clean(op.label, 26)}</text>'
        f'<text x="{x + 10}" y="{y + 46}" class="s">{clean(below)}</text>'
        f'<text x="{x + 10}" y="{y + 64}" class="s">{told}</text></g>'
    )


def _edge(edge: FlowEdge, line: Line, path: Mapping[tuple[str, int], float], use: EdgeUse | None) -> str:
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
        f'<g><title>{clean(tip)}</title><path d="{line.path}" class="edge{hot}" marker-end="url(#tip{hot.strip()})"/>'
        f'<text x="{line.x:.0f}" y="{line.y - 5:.0f}" class="s m">{clean(above, 24)}</text>'
        f'<text x="{line.x:.0f}" y="{line.y + 13:.0f}" class="s m w">{clean(" · ".join(waits))}</text></g>'
    )
