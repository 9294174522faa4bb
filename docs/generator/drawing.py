"""Pictures of the diagrams in the documents, as SVG: a reader's browser fetches nothing to see them.

The diagrams are written in a part of mermaid's language, which code hosts show by themselves: ``flowchart`` with
``id["text"]``, ``a -->|label| b``, ``a -.->|label| b`` and ``classDef``/``class`` ignored; ``stateDiagram-v2`` with
``a --> b: label`` and ``[*]``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from docs.generator.layout import Box, Layout, lay_out

__all__ = ["drawn"]

LETTER, LINE = 7.4, 17.0
PALETTE = ("#4361ee", "#2a9d8f", "#e07a1f", "#9b5de5", "#d1495b", "#5b7c99", "#7a9e3a", "#b56576")
STYLE = """\
<style>
.rm text { font: 13px system-ui, sans-serif; fill: currentColor; text-anchor: middle }
.rm .said { font-size: 11.5px; paint-order: stroke; stroke: var(--md-default-bg-color, #fff); stroke-width: 5px }
.rm path { fill: none; stroke: currentColor; stroke-opacity: .55; stroke-width: 1.3 }
.rm .lagged { stroke-dasharray: 5 4 }
.rm .tip { fill: currentColor; fill-opacity: .6; stroke: none }
.rm rect { fill-opacity: .14; stroke-width: 1.4 }
</style>"""


@dataclass
class Diagram:
    """Nodes with their lines of text; edges with label and whether dotted; `down`: layers from top to bottom."""

    down: bool
    nodes: dict[str, list[str]] = field(default_factory=dict)
    edges: list[tuple[str, str, str, bool]] = field(default_factory=list)


def drawn(source: str, alt: str = "diagram") -> str:
    """The diagram as an ``<svg>`` element. Raises `ValueError` for a line that is not understood."""
    head, *lines = [line.strip() for line in source.strip().splitlines() if line.strip()]
    if head.startswith("flowchart"):
        return _svg(_flowchart(head, lines), alt)
    if head == "stateDiagram-v2":
        return _svg(_states(lines), alt)
    raise ValueError(f"a diagram begins with flowchart or stateDiagram-v2, not {head!r}")


def _flowchart(head: str, lines: Sequence[str]) -> Diagram:
    found = Diagram(down=head.split()[-1] in ("TD", "TB"))
    for line in lines:
        if match := re.fullmatch(r'(\w+)\["(.*)"\]', line):
            found.nodes[match[1]] = match[2].split("<br>")
        elif match := re.fullmatch(r'(\w+) (-->|-\.->)(?:\|"?([^|"]*)"?\|)? (\w+)', line):
            found.edges.append((match[1], match[4], match[3] or "", match[2] == "-.->"))
        else:
            raise ValueError(f"this line of a flowchart is not understood: {line!r}")
    return found


def _states(lines: Sequence[str]) -> Diagram:
    found = Diagram(down=True)
    for line in lines:
        match = re.fullmatch(r"(\[\*\]|\w+) --> (\[\*\]|\w+)(?:: (.*))?", line)
        if not match:
            raise ValueError(f"this line of a state diagram is not understood: {line!r}")
        source, target = match[1].replace("[*]", "(begin)"), match[2].replace("[*]", "(end)")
        for name in (source, target):
            found.nodes.setdefault(name, [name])
        found.edges.append((source, target, match[3] or "", False))
    return found


def _size(lines: Sequence[str], pad: float, letter: float = LETTER) -> tuple[float, float]:
    """Width and height."""
    return max((len(line) for line in lines), default=0) * letter + pad, len(lines) * LINE + pad * 0.6


def _svg(diagram: Diagram, alt: str) -> str:
    said = [textwrap.wrap(label, 24) for _, _, label, _ in diagram.edges]
    sizes = {name: (18.0, 18.0) if name.startswith("(") else _size(text, 22) for name, text in diagram.nodes.items()}
    labels = [_size(lines, 8, 6.4) if lines else (1.0, 1.0) for lines in said]

    def turned(size: tuple[float, float]) -> tuple[float, float]:
        return size[::-1] if diagram.down else size

    plan = lay_out(
        {name: turned(size) for name, size in sizes.items()},
        [(a, b, turned(size)) for (a, b, _, _), size in zip(diagram.edges, labels, strict=True)],
        gap=16,
        apart=22,
    )
    return _paint(diagram, plan, said, alt)


def _paint(diagram: Diagram, plan: Layout, said: Sequence[Sequence[str]], alt: str) -> str:
    def place(box: Box) -> tuple[float, float]:
        return (box.off, box.at) if diagram.down else (box.at, box.off)

    def extent(box: Box) -> tuple[float, float]:
        return (box.across, box.along) if diagram.down else (box.along, box.across)

    parts: list[str] = []
    for (_, _, _, dotted), path in zip(diagram.edges, plan.paths, strict=True):
        parts += _arrow([place(box) for box in path], extent(path[0]), extent(path[-1]), diagram.down, dotted)
    for lines, box in zip(said, plan.labels, strict=True):
        parts += _text(lines, *place(box), "said")
    groups = list(dict.fromkeys(text[0] for text in diagram.nodes.values()))
    for name, lines in diagram.nodes.items():
        (x, y), (width, height) = place(plan.boxes[name]), extent(plan.boxes[name])
        if name.startswith("("):
            parts.append(f'<circle class="tip" cx="{x:.1f}" cy="{y:.1f}" r="7"/>')
            continue
        colour = PALETTE[0] if diagram.down else PALETTE[groups.index(lines[0]) % len(PALETTE)]
        parts.append(
            f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="7" fill="{colour}" stroke="{colour}"/>'
        )
        parts += _text(lines, x, y)
    everything = [*plan.boxes.values(), *plan.labels, *(box for path in plan.paths for box in path)]
    left = min(place(box)[0] - extent(box)[0] / 2 for box in everything) - 8
    right = max(place(box)[0] + extent(box)[0] / 2 for box in everything) + 8
    top = min(place(box)[1] - extent(box)[1] / 2 for box in everything) - 8
    bottom = max(place(box)[1] + extent(box)[1] / 2 for box in everything) + 8
    view = f"{left:.1f} {top:.1f} {right - left:.1f} {bottom - top:.1f}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rm" role="img" aria-label="{escape(alt)}" '
        f'viewBox="{view}" style="width:100%;max-width:{right - left:.0f}px;height:auto">'
    )
    return "\n".join([head, STYLE, *parts, "</svg>"])


def _text(lines: Sequence[str], x: float, y: float, kind: str = "") -> list[str]:
    first = y - (len(lines) - 1) * LINE / 2 + 4.5
    mark = f' class="{kind}"' if kind else ""
    return [f'<text{mark} x="{x:.1f}" y="{first + n * LINE:.1f}">{escape(line)}</text>' for n, line in enumerate(lines)]


def _arrow(
    points: list[tuple[float, float]], start: tuple[float, float], end: tuple[float, float], down: bool, dotted: bool
) -> list[str]:
    """A smooth line through the points, from the first node's border to a tip at the last one's."""
    axis = 1 if down else 0
    sign = 1.0 if points[-1][axis] >= points[0][axis] else -1.0

    def moved(point: tuple[float, float], by: float) -> tuple[float, float]:
        return (point[0], point[1] + by) if down else (point[0] + by, point[1])

    first = moved(points[0], sign * start[axis] / 2)
    tip = moved(points[-1], -sign * end[axis] / 2)
    line = [first, *points[1:-1], moved(tip, -sign * 7)]
    path = f"M{line[0][0]:.1f} {line[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(line):
        if down:
            path += f" C{x0:.1f} {(y0 + y1) / 2:.1f} {x1:.1f} {(y0 + y1) / 2:.1f} {x1:.1f} {y1:.1f}"
        else:
            path += f" C{(x0 + x1) / 2:.1f} {y0:.1f} {(x0 + x1) / 2:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    back = moved(tip, -sign * 8)
    wings = (
        [(back[0] - 4, back[1]), (back[0] + 4, back[1])] if down else [(back[0], back[1] - 4), (back[0], back[1] + 4)]
    )
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (tip, *wings))
    mark = ' class="lagged"' if dotted else ""
    return [f'<path{mark} d="{path}"/>', f'<polygon class="tip" points="{corners}"/>']
