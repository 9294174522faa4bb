"""Places for the nodes of a directed graph, layer by layer, so that edges and their labels cross little.

After Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981: break
cycles, give layers by longest path, put a dummy on every layer that an edge passes, order by barycentres, then pull
neighbours in line. A label is a dummy with a size, in the middle of its edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Box", "Layout", "lay_out"]

SWEEPS = 24
PULLS = 60


@dataclass
class Box:
    """Something with a size and, once laid out, a centre; `along` is the direction in which layers follow."""

    along: float
    across: float
    layer: int = 0
    at: float = 0.0
    off: float = 0.0
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Layout:
    """`boxes` of the given nodes, and per edge the boxes it passes from its source to its target."""

    boxes: Mapping[str, Box]
    paths: Sequence[Sequence[Box]]
    labels: Sequence[Box]


def lay_out(
    nodes: Mapping[str, tuple[float, float]],
    edges: Sequence[tuple[str, str, tuple[float, float]]],
    gap: float,
    apart: float,
) -> Layout:
    """Places for `nodes` (sizes along and across) and for `edges` (source, target, size of the label).

    `gap` is between layers, `apart` between neighbours in a layer.
    """
    layers_of = _layers(list(nodes), [(source, target) for source, target, _ in edges])
    boxes = [Box(*size, layer=2 * layers_of[name]) for name, size in nodes.items()]
    index = {name: i for i, name in enumerate(nodes)}
    paths, labels = [], []
    for source, target, size in edges:
        low, high = sorted((index[source], index[target]), key=lambda i: boxes[i].layer)
        middle = (boxes[low].layer + boxes[high].layer) // 2
        middle += 1 - middle % 2 if middle + 1 < boxes[high].layer or middle == boxes[low].layer else 0
        path = [low]
        for layer in range(boxes[low].layer + 1, boxes[high].layer):
            boxes.append(Box(*(size if layer == middle else (0.0, 1.0)), layer=layer))
            path.append(len(boxes) - 1)
        path.append(high)
        for one, other in pairwise(path):
            boxes[one].after.append(other)
            boxes[other].before.append(one)
        labels.append(next((boxes[i] for i in path if boxes[i].layer == middle), boxes[low]))
        paths.append([boxes[i] for i in (path if path[0] == index[source] else path[::-1])])
    layers = [[i for i, box in enumerate(boxes) if box.layer == n] for n in range(max(b.layer for b in boxes) + 1)]
    _order(layers, boxes)
    _place(layers, boxes, gap, apart)
    return Layout({name: boxes[i] for name, i in index.items()}, paths, labels)


def _layers(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Longest path from a source, after the edges that close a cycle have been turned round."""
    forward = {name: [target for source, target in edges if source == name and target != name] for name in nodes}
    state: dict[str, int] = {}
    order: list[str] = []
    turned: set[tuple[str, str]] = set()

    def visit(name: str) -> None:
        state[name] = 1
        for target in forward[name]:
            if state.get(target) == 1:
                turned.add((name, target))
            elif target not in state:
                visit(target)
        state[name] = 2
        order.append(name)

    for name in nodes:
        if name not in state:
            visit(name)
    layer = dict.fromkeys(nodes, 0)
    for name in reversed(order):
        for source, target in edges:
            if source == name and (source, target) not in turned:
                layer[target] = max(layer[target], layer[name] + 1)
    return layer


def _order(layers: Sequence[list[int]], boxes: Sequence[Box]) -> None:
    """Sort each layer by the mean position of its neighbours in the layer before, and behind, in turns."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else layers[::-1]:
            places = {i: n for each in layers for n, i in enumerate(each)}

            def barycentre(i: int, down: bool = down, places: Mapping[int, int] = places) -> float:
                near = boxes[i].before if down else boxes[i].after
                return sum(places[n] for n in near) / len(near) if near else float(places[i])

            layer.sort(key=barycentre)


def _place(layers: Sequence[Sequence[int]], boxes: Sequence[Box], gap: float, apart: float) -> None:
    at = 0.0
    for layer in layers:
        size = max((boxes[i].along for i in layer), default=0.0)
        for i in layer:
            boxes[i].at = at + size / 2
        at += size + gap
        off = 0.0
        for i in layer:
            boxes[i].off = off + boxes[i].across / 2
            off += boxes[i].across + apart
    for pull in range(PULLS):
        for layer in layers if pull % 2 == 0 else layers[::-1]:
            wanted = []
            for i in layer:
                near = [*boxes[i].before, *boxes[i].after]
                wanted.append(sum(boxes[n].off for n in near) / len(near) if near else boxes[i].off)
            _settle([boxes[i] for i in layer], wanted, apart)


def _settle(boxes: Sequence[Box], wanted: Sequence[float], apart: float) -> None:
    """Every box as near as possible to where it wants to be, in this order and without touching."""
    groups: list[tuple[list[Box], list[float], float]] = []
    for box, want in zip(boxes, wanted, strict=True):
        groups.append(([box], [0.0], want))
        while len(groups) > 1 and _left(groups[-1]) < _right(groups[-2]) + apart:
            (some, shifts, first), (more, others, second) = groups[-2], groups[-1]
            step = shifts[-1] + some[-1].across / 2 + apart + more[0].across / 2
            joined = (len(some) * first + len(more) * (second - step)) / (len(some) + len(more))
            groups[-2:] = [(some + more, shifts + [step + shift for shift in others], joined)]
    for members, shifts, first in groups:
        for box, shift in zip(members, shifts, strict=True):
            box.off = first + shift


def _left(group: tuple[list[Box], list[float], float]) -> float:
    return group[2] - group[0][0].across / 2


def _right(group: tuple[list[Box], list[float], float]) -> float:
    return group[2] + group[1][-1] + group[0][-1].across / 2
