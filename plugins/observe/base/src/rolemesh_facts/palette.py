"""The colours of what ranks do, for every picture of a run. Pure.

Work has strong colours. Waits are grey or pale, so that a reader sees first who works; the strong ones have a contrast
of at least 3 to the page (WCAG 2.2, 1.4.11).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rolemesh_recorder.lines import FlowFile

__all__ = ["PHASES", "css", "phase_of"]

LIGHT: Final[Mapping[str, str]] = {
    "computing": "#2571cd", "waiting": "#c9ced6", "blocked": "#a774cb", "idle": "#e6e9ee", "calling": "#189c6c",
    "serving": "#0b7d58", "following": "#bfe3d5", "gathering": "#4f9494", "saving": "#b07900", "turn": "#f3c6d8",
    "loading": "#d9639a", "memory": "#8f5bb8", "starting": "#8a6d3b", "setup": "#a98a52", "restoring": "#d96d4f",
    "engine": "#7b8794",
}  # fmt: skip
DARK: Final[Mapping[str, str]] = {
    **LIGHT, "computing": "#4b97ee", "waiting": "#4a5461", "idle": "#2a323b", "following": "#2c5548", "turn": "#6b4355",
    "engine": "#667380",
}  # fmt: skip
PHASES: Final = tuple(LIGHT)
"""The phases that have a colour, in the order of legends."""
PALE: Final = frozenset({"waiting", "idle", "following", "turn"})
"""The waits whose colours are near that of the page."""
_INK: Final = ("#0d1116", "#ffffff")


def phase_of(flow: FlowFile | None, role: str, name: str) -> str:
    """Return the phase whose colour a name of an account of `role` has: of an edge, whether it takes or sends there."""
    kind, _, number = name.partition(" ")
    if kind != "edge":
        return kind if kind in LIGHT else "engine"
    if flow is not None and number.isdigit() and int(number) < len(flow.edges):
        target = flow.edges[int(number)].dst
        return "waiting" if 0 <= target < len(flow.ops) and flow.ops[target].role == role else "blocked"
    return "waiting"


def css(prefix: str = "") -> str:
    """Return a style sheet: ``--PHASE`` and, for text on it, ``--on-PHASE``; classes ``PREFIX+PHASE`` fill with it."""
    dark = _variables({phase: colour for phase, colour in DARK.items() if colour != LIGHT[phase]})
    classes = "\n".join(f".{prefix}{phase}{{fill:var(--{phase});background:var(--{phase})}}" for phase in PHASES)
    texts = "\n".join(f".{prefix}on-{phase}{{fill:var(--on-{phase});color:var(--on-{phase})}}" for phase in PHASES)
    return f":root{{{_variables(LIGHT)}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n{classes}\n{texts}\n"


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{phase}:{colour};--on-{phase}:{_ink(colour)};" for phase, colour in colours.items())


def _ink(colour: str) -> str:
    """Return the colour of text with the larger contrast on `colour` (WCAG 2.2, contrast ratio)."""
    own = _luminance(colour)
    contrasts = {ink: _contrast(own, _luminance(ink)) for ink in _INK}
    return max(contrasts, key=contrasts.__getitem__)


def _contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def _luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
