"""Metrics as small SVG curves, with the mean of the steps around each one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rolemesh_facts.series import Points, centred
from rolemesh_report.text import clean, number

__all__ = ["curve"]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 340, 150, 52, 10, 10, 22


def curve(name: str, points: Points) -> str:
    """Return the curve of one metric. A value that is not finite is a gap, and the text counts them."""
    steps, values = points
    finite = [value for value in values if math.isfinite(value)]
    odd = len(values) - len(finite)
    width = max(3, len(values) // 10) | 1
    told = f"{len(values)} points, last {number(values[-1])}" if values else "no value"
    told += f", {odd} not finite" if odd else ""
    head = f'<figure><figcaption><b>{clean(name, 60)}</b><br><span class="s">{told}</span></figcaption>'
    if not finite:
        return f"{head}</figure>"
    low, high = min(finite), max(finite)
    if low == high:
        low, high = low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
    first, last = steps[0], max(steps[-1], steps[0] + 1)

    def line(heights: Sequence[float]) -> str:
        way, pen = [], "M"
        for step, value in zip(steps, heights, strict=True):
            if not math.isfinite(value):
                pen = "M"
                continue
            x = LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT)
            y = TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)
            way.append(f"{pen}{x:.1f},{y:.1f}")
            pen = "L"
        return "".join(way)

    smooth = f'<path d="{line(centred(values, width))}" class="mean"/>' if len(values) > width else ""
    floor = HEIGHT - BOTTOM
    return (
        f'{head}<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f'<path d="M{LEFT},{TOP} V{floor} H{WIDTH - RIGHT}" class="axis"/>'
        f'<text x="{LEFT - 5}" y="{TOP + 8}" class="s e">{number(high)}</text>'
        f'<text x="{LEFT - 5}" y="{floor}" class="s e">{number(low)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}" class="s">{first}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" class="s e">step {steps[-1]}</text>'
        f'<path d="{line(values)}" class="raw{"" if smooth else " alone"}"/>{smooth}</svg>'
        + (f'<span class="s">bold: mean of {width} points around each one</span>' if smooth else "")
        + "</figure>"
    )
