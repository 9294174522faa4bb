"""Metrics as small SVG curves, with the mean of the steps around each one. Pure."""

from __future__ import annotations

from rolemesh_facts.curves import curve_of
from rolemesh_facts.series import Points
from rolemesh_report.text import clean, number

__all__ = ["curve"]

WIDTH, HEIGHT = 340, 150


def curve(name: str, points: Points) -> str:
    """Return the curve of one metric. A value that is not finite is a gap, and the text counts them."""
    found, values = curve_of(points, WIDTH, HEIGHT), points[1]
    told = f"{len(values)} points, last {number(values[-1])}" if values else "no value"
    told += f", {found.odd} not finite" if found.odd else ""
    head = f'<figure><figcaption><b>{clean(name, 60)}</b><br><span class="s">{told}</span></figcaption>'
    if not found.raw:
        return f"{head}</figure>"
    left, right, floor = found.left, found.right, found.floor
    smooth = f'<path d="{found.mean}" class="mean"/>' if found.mean else ""
    return (
        f'{head}<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f'<path d="M{left},{found.top} V{floor} H{right}" class="axis"/>'
        f'<text x="{left - 5}" y="{found.top + 8}" class="s e">{number(found.high)}</text>'
        f'<text x="{left - 5}" y="{floor}" class="s e">{number(found.low)}</text>'
        f'<text x="{left}" y="{HEIGHT - 6}" class="s">{found.first}</text>'
        f'<text x="{right}" y="{HEIGHT - 6}" class="s e">step {found.last}</text>'
        f'<path d="{found.raw}" class="raw{"" if smooth else " alone"}"/>{smooth}</svg>'
        + (f'<span class="s">bold: mean of {found.around} points around each one</span>' if smooth else "")
        + "</figure>"
    )
