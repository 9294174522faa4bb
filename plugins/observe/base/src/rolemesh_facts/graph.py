"""The picture of a flow: layers of operators from left to right, and the lines between them. Pure.

Sugiyama et al. 1981, "Methods for visual understanding of hierarchical system structures": remove cycles, give each
node the layer after the last of its predecessors, give an edge a place of its own in each layer that it passes, and
order each layer by the mean place of its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Drawing", "Line", "draw", "layers"]

WIDTH, HEIGHT = 190, 84
ACROSS, DOWN = 150, 36
MARGIN = 30
PASSES, PASSAGE = "pass ", 34
"""The beginning of the key of a place where an edge passes a layer, and its height: that of two lines of text."""
SWEEPS = 6
LABEL_WIDTH, ABOVE, BELOW, FLAT = 120, 18, 50, 4
"""Pixels of a label: its width, its height above and below its point, and the space that it leaves for its line."""
SAMPLES = 20
"""Points of a curve at which a label may lie."""
Point = tuple[float, float]


class Line(NamedTuple):
    """An edge as an SVG path, and the point for its label. `back`: it leads from right to left.

    `points` lie on the path, from its begin to its end.
    """

    path: str
    x: float
    y: float
    back: bool
    points: Sequence[Point] = ()


class Drawing(NamedTuple):
    """Positions of nodes' upper left corners by key, lines in the order of the edges, and the size of all."""

    places: Mapping[str, tuple[int, int]]
    lines: Sequence[Line]
    width: int
    height: int


def layers(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the layer of each node. An edge that closes a cycle, in the order of the nodes, does not count."""
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in edges:
        if source != target:
            after[source].append(target)
    forward: dict[str, list[str]] = {node: [] for node in nodes}
    state: dict[str, int] = {}
    order: list[str] = []
    for root in nodes:
        stack = [(root, iter(after[root]))] if root not in state else []
        if stack:
            state[root] = 1
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                state[node] = 2
                order.append(node)
                stack.pop()
            elif state.get(following) != 1:
                forward[node].append(following)
                if following not in state:
                    state[following] = 1
                    stack.append((following, iter(after[following])))
    found = dict.fromkeys(nodes, 0)
    for node in reversed(order):
        for following in forward[node]:
            found[following] = max(found[following], found[node] + 1)
    return found


def draw(nodes: Sequence[str], edges: Sequence[tuple[str, str]], labelled: int | None = None) -> Drawing:
    """Return where nodes and lines are, in pixels. Only the first `labelled` lines have labels; None: all."""
    layer = layers(nodes, edges)
    columns: list[list[str]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for node in nodes:
        columns[layer[node]].append(node)
    ways: list[list[str]] = []
    for at, (source, target) in enumerate(edges):
        passed = [f"{PASSES}{at} {between}" for between in range(layer[source] + 1, layer[target])]
        for place in passed:
            columns[int(place.rpartition(" ")[2])].append(place)
        ways.append([source, *passed, target])
    _order(columns, [pair for way in ways for pair in pairwise(way)])
    tall = [sum(_height(node) + DOWN for node in column) for column in columns]
    places = {}
    for x, column in enumerate(columns):
        top = MARGIN + (max(tall) - tall[x]) // 2
        for node in column:
            places[node] = (MARGIN + x * (WIDTH + ACROSS), top)
            top += _height(node) + DOWN
    base = MARGIN + max(tall, default=0)
    drawn, backs = [], 0
    for at, way in enumerate(ways):
        twins = [n for n, edge in enumerate(edges) if edge == edges[at]]
        back = layer[way[-1]] <= layer[way[0]]
        drawn.append(_line(places, way, twins.index(at) - (len(twins) - 1) / 2, base + 30 * backs, back))
        backs += back
    width = max(0, 2 * MARGIN + len(columns) * (WIDTH + ACROSS) - ACROSS) if columns else 0
    below = base + 30 * backs if backs else base - DOWN  # without edges back, nothing is below the operators
    shown = {node: places[node] for node in nodes}
    return Drawing(shown, _labelled(drawn, len(drawn) if labelled is None else labelled), width, max(0, below + MARGIN))


def _labelled(lines: Sequence[Line], labelled: int) -> list[Line]:
    """Return the lines, each with its label at a point of it that is far from other lines and labels, and where it is
    flat; near the middle if possible."""
    taken: list[Point] = []

    def crowd(at: int, point: Point) -> int:
        x, y = point
        near = sum(
            abs(x - u) < LABEL_WIDTH / 2 and -ABOVE < v - y < BELOW and (number != at or abs(v - y) > FLAT)
            for number, line in enumerate(lines)
            for u, v in line.points
        )
        return near + SAMPLES * sum(abs(x - u) < LABEL_WIDTH and abs(y - v) < ABOVE + BELOW for u, v in taken)

    found = list(lines)
    for at, line in enumerate(lines[:labelled]):
        middle = line.x, line.y
        free = [point for point in line.points if _in_gap(point[0])] if not line.back else []
        x, y = min([middle, *free], key=lambda point: (crowd(at, point), abs(point[0] - line.x)))
        taken.append((x, y))
        found[at] = line._replace(x=x, y=y)
    return found


def _in_gap(x: float) -> bool:
    """Return whether a label at `x` lies between two layers."""
    return LABEL_WIDTH / 2 <= (x - MARGIN) % (WIDTH + ACROSS) - WIDTH <= ACROSS - LABEL_WIDTH / 2


def _height(node: str) -> int:
    return PASSAGE if node.startswith(PASSES) else HEIGHT


def _order(columns: list[list[str]], edges: Sequence[tuple[str, str]]) -> None:
    for sweep in range(SWEEPS):
        rows = {node: at - (len(column) - 1) / 2 for column in columns for at, node in enumerate(column)}
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            means = {}
            for node in column:
                near = [rows[s if sweep % 2 == 0 else t] for s, t in edges if (t if sweep % 2 == 0 else s) == node]
                means[node] = sum(near) / len(near) if near else rows[node]
            column.sort(key=means.__getitem__)
            rows |= {node: at - (len(column) - 1) / 2 for at, node in enumerate(column)}


def _line(places: Mapping[str, tuple[int, int]], way: Sequence[str], shift: float, below: float, back: bool) -> Line:
    (x1, y1), (x2, y2) = places[way[0]], places[way[-1]]
    if back:
        begin, end = x1 + WIDTH / 2, x2 + WIDTH / 2
        deep = below + 30
        path = f"M{begin:.0f} {y1 + HEIGHT} C{begin:.0f} {deep:.0f} {end:.0f} {deep:.0f} {end:.0f} {y2 + HEIGHT}"
        return Line(path, (begin + end) / 2, below + 16, True)
    x, y = x1 + WIDTH, y1 + HEIGHT / 2 + 24 * shift
    path = f"M{x} {y:.0f}"
    labels, points = [], list[Point]()
    for node in way[1:]:
        left, top = places[node]
        end_y = top + _height(node) / 2 + (24 * shift if node == way[-1] else 0)
        middle = (x + left) / 2
        path += f" C{middle:.0f} {y:.0f} {middle:.0f} {end_y:.0f} {left} {end_y:.0f}"
        labels.append((middle, (y + end_y) / 2))
        for t in (number / SAMPLES for number in range(SAMPLES + 1)):  # a Bézier curve whose handles are at `middle`
            over, up = 3 * t * (1 - t), t * t * (3 - 2 * t)
            points.append(((1 - t) ** 3 * x + over * middle + t**3 * left, y + up * (end_y - y)))
        x, y = left, end_y
        if node != way[-1]:
            points += [(x + WIDTH * number / SAMPLES, y) for number in range(1, SAMPLES)]
            x += WIDTH
            path += f" H{x}"
            labels.append((left + WIDTH / 2, end_y))
    return Line(path, *labels[len(labels) // 2], False, points)
