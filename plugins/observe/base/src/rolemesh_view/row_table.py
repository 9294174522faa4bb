"""Kept rows as lines of a table, and as points of a picture of reward against length. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from rolemesh_view.choosing import REWARD, TOKENS, Choice
from rolemesh_view.entries import Entry

__all__ = ["Dot", "Scatter", "columns_of_table", "neighbours", "scatter"]

MOST_DOTS: Final = 500
WIDTH, HEIGHT, LEFT, FLOOR = 620, 220, 52, 196
RIGHT, TOP = WIDTH - 12, 10


class Dot(NamedTuple):
    """A row's place in the picture, in pixels."""

    entry: Entry
    x: float
    y: float


class Scatter(NamedTuple):
    """Rewards against numbers of sampled tokens, with the ends of both axes."""

    dots: Sequence[Dot]
    rewards: tuple[float, float]
    tokens: tuple[int, int]
    size: tuple[int, int] = (WIDTH, HEIGHT)
    frame: tuple[int, int, int, int] = (LEFT, TOP, RIGHT, FLOOR)


def columns_of_table(choice: Choice) -> list[tuple[str, str]]:
    """Return the columns of the table, each with the order that a click on its head asks for: highest first."""
    orders = {REWARD: f"-{REWARD}", "turns": "-turns", TOKENS: f"-{TOKENS}"}
    return [(name, name if choice.sort == order else order) for name, order in orders.items()]


def scatter(rows: Sequence[Entry]) -> Scatter | None:
    """Return the picture of the first rows with a reward and a length; None with fewer than two, or two equal ones."""
    told = ((row, row.said.reward, row.said.tokens) for row in rows)
    both = ((row, float(reward), tokens) for row, reward, tokens in told if reward is not None and tokens is not None)
    found = [*islice(both, MOST_DOTS)][::-1]
    rewards, lengths = [reward for _, reward, _ in found], [tokens for _, _, tokens in found]
    if len(found) < 2 or (min(rewards) == max(rewards) and min(lengths) == max(lengths)):
        return None
    low, high, least, most = min(rewards), max(rewards), min(lengths), max(lengths)
    dots = [
        Dot(
            row,
            round(LEFT + (tokens - least) / max(1, most - least) * (RIGHT - LEFT), 1),
            round(FLOOR - ((reward - low) / (high - low) if high > low else 0.5) * (FLOOR - TOP), 1),
        )
        for row, reward, tokens in found
    ]
    return Scatter(dots, (low, high), (least, most))


def neighbours(rows: Iterable[Entry], choice: Choice) -> dict[str, Any]:
    """Return the rows before and after the chosen one, among those of its step, operator and group; None for none."""
    of_step = [row for row in rows if row.step == choice.step and choice.op in ("", row.op)]
    chosen = next((row for row in of_step if row.row == choice.row and choice.rank in ("", str(row.ref))), None)
    if chosen is None:
        return {"previous": None, "next": None, "place": 0, "of": 0}
    of_group = [row for row in of_step if row.op == chosen.op and row.said.group == chosen.said.group]
    of_group.sort(key=lambda row: (row.row, str(row.ref)))
    at = of_group.index(chosen)
    return {
        "previous": of_group[at - 1] if at else None,
        "next": of_group[at + 1] if at + 1 < len(of_group) else None,
        "place": at + 1,
        "of": len(of_group),
    }
