"""The time of roles as stacked bars, and of ranks as lanes, in SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.labels import meaning, phase_label, use_label
from rolemesh_facts.marks import Mark
from rolemesh_facts.palette import PHASES, phase_of
from rolemesh_facts.pieces import Piece
from rolemesh_facts.time_use import Use
from rolemesh_recorder.lines import FlowFile
from rolemesh_report.text import clean, seconds, share, svg

__all__ = ["LANES", "bars", "lanes_picture", "legend"]

WIDTH, LABEL, LANE = 1080, 130, 22
LANES = 64
"""Number of lanes that are shown."""
LEAST = 0.35
"""Width in pixels below which a piece is left out."""


def legend(drawn: Iterable[str]) -> str:
    """Return what the colours of the phases in `drawn` mean."""
    shown = set(drawn)
    spans = (f'<span><i class="fill-{each}"></i>{meaning(each)}</span>' for each in PHASES if each in shown)
    return f'<p class="legend">{"".join(spans)}</p>'


def bars(flow: FlowFile | None, roles: Mapping[str, Use]) -> str:
    """Return one bar per role."""
    parts = []
    for row, (role, use) in enumerate(roles.items()):
        y, x = 8 + row * 34, float(LABEL)
        parts.append(f'<text x="0" y="{y + 16}" class="b">{clean(role, 18)}</text>')
        for name, part in use.shares.items():
            wide = part * (WIDTH - LABEL)
            if wide < LEAST:
                continue
            told = f"{use_label(flow, role, name)}: {share(part)}"
            kind = phase_of(flow, role, name)
            text = f'<text x="{x + 5:.1f}" y="{y + 16}" class="on fill-on-{kind}">{clean(told)}</text>'
            text = text if wide > 7 * len(told) else ""
            parts.append(
                f'<g><title>{clean(told)}</title><rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="24" '
                f'class="fill-{kind}"/>{text}</g>'
            )
            x += wide
    return svg(WIDTH, 8 + len(roles) * 34, parts)


def lanes_picture(
    flow: FlowFile | None, lanes: Mapping[RankRef, Sequence[Piece]], marks: Iterable[Mark], since: int, until: int
) -> str:
    """Return one lane per rank from `since` to `until`, in µs since 1970, with marks at failures and resizes."""
    scale = (WIDTH - LABEL) / max(1, until - since)
    shown = list(lanes.items())[:LANES]
    height = 30 + len(shown) * LANE
    parts = []
    for row, (ref, pieces) in enumerate(shown):
        y = 24 + row * LANE
        parts.append(f'<text x="0" y="{y + 13}" class="s">{clean(ref, 18)}</text>')
        parts.append(f'<rect x="{LABEL}" y="{y}" width="{WIDTH - LABEL}" height="{LANE - 5}" class="none"/>')
        for piece in pieces:
            begin, end = max(piece.t, since), min(piece.end, until)
            if (wide := (end - begin) * scale) < LEAST:
                continue
            what = phase_label(flow, ref.role, piece.phase, piece.op, piece.edge)
            told = f"{what}, {seconds((piece.end - piece.t) / 1e6)}"
            step = f", step {piece.step}" if piece.step >= 0 else ""
            parts.append(
                f'<rect x="{LABEL + (begin - since) * scale:.1f}" y="{y}" width="{wide:.1f}" height="{LANE - 5}" '
                f'class="fill-{phase_of(flow, ref.role, piece.phase)}"><title>{clean(told + step)}</title></rect>'
            )
    for mark in marks:
        x, kind = LABEL + (mark.t - since) * scale, " resize" if mark.kind == "resize" else ""
        if LABEL <= x <= WIDTH:
            wide = min(WIDTH - x, (mark.end - mark.t) * scale)
            parts.append(
                f"<g><title>{clean(mark.text, 300)}</title>"
                f'<rect x="{x:.1f}" y="20" width="{wide:.1f}" height="{height - 26}" class="recovery{kind}"/>'
                f'<path d="M{x:.1f},20 V{height - 6}" class="mark{kind}"/></g>'
            )
    for tick in range(6):
        x = LABEL + tick * (WIDTH - LABEL) / 5
        place = "e" if tick == 5 else "m" if tick else ""
        parts.append(
            f'<text x="{x:.0f}" y="12" class="s {place}">{clean(seconds((until - since) * tick / 5e6))}</text>'
        )
    return svg(WIDTH, height, parts)
