"""The page of kept rows: from steps to groups, to rows, to the tokens of one row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from rolemesh_facts.row_meaning import FAULTS, REWARDS
from rolemesh_view import tokens
from rolemesh_view.choosing import Choice, choose
from rolemesh_view.dialogue import cards
from rolemesh_view.entries import Entry, policies_of
from rolemesh_view.groups import Group, StepRows, groups_of, steps_of, why_reward
from rolemesh_view.row_table import columns_of_table, neighbours, scatter
from rolemesh_view.viewed import Viewed
from rolemesh_view.vocabulary import vocabulary

__all__ = ["CHOOSING", "follows", "lists", "rows"]

CHOOSING: Final = ("op", "step", "find", "only", "sort", "first", "group", "row", "rank", "by", "ids")
"""Names in the page's address that choose rows, and how they look."""

MOST_STEPS, MOST_GROUPS = 50, 500
"""Lines of the tables of steps and groups."""


class TokenLine(NamedTuple):
    """One token: its place, text, log-probabilities at the trainer and at the sampler, difference and ratio."""

    number: int
    text: str
    trainer: float
    sampler: float
    difference: float
    ratio: float
    shade: int


def follows(query: Mapping[str, str]) -> bool:
    """Return whether the lists of the page may change: one row stays as it is, and a search decodes all rows."""
    return not query.get("row") and not query.get("find")


def lists(run: Viewed, query: Mapping[str, str], kept: Sequence[Entry]) -> dict[str, Any]:
    """Return the tables of steps and groups, and what the page says about the `kept` rows, which were just read.

    `newest` changes when other rows would be the ones that the page shows.
    """
    choice, by = _choice(query), query.get("by", "")
    found = choose(run.rows.newest(), choice, run.rows.find)
    of_op = [each for each in kept if choice.op in ("", each.op)] if choice.step is not None else []
    of_step = [each for each in of_op if each.step == choice.step]
    flow = run.facts.flow() if not kept else None
    whole = choice.group is None and choice.row is None
    first = found.rows[0] if found.rows else None
    lists_steps = choice.step is None and not choice.first
    steps = run.rows.derived("steps", lambda rows: steps_of(rows, MOST_STEPS)) if lists_steps else []
    every = groups_of(of_step) if choice.step is not None and whole else []
    groups = every[:MOST_GROUPS]
    told: list[StepRows | Group] = [*steps, *groups]
    return {
        "operators": [op.label for op in flow.ops] if flow else [],
        "choice": choice, "found": found.rows, "passing": found.passing,
        "total": len(found.passing), "more": found.more, "kept": len(kept), "partial": run.rows.partial,
        "missing": run.rows.named().missing,
        "faults": [name for name in FAULTS if name == "truncated" or any(each.faults[name] for each in told)],
        "steps": steps, "groups": groups, "all_groups": len(every),
        "all_steps": run.rows.derived("all steps", lambda rows: len({row.step for row in rows})),
        "why": _why(run, of_op, choice.step) if choice.step is not None and whole else None,
        "newest": f"{len(found.passing)} {first.step} {first.op} {first.row} {first.ref}" if first else "",
        "link": lambda **changes: link(choice, by, changes),
    }  # fmt: skip


def rows(run: Viewed, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the tables of steps and groups, and the rows that pass the filters of `query`."""
    kept, named = run.rows.entries(), run.rows.named()
    content = lists(run, query, kept)
    choice: Choice = content["choice"]
    read = list(run.rows.read(content["found"]))
    by, text_of = query.get("by", ""), vocabulary(run.facts)
    shown = []
    for entry, row in read:
        ways = _ways(row.columns)
        way = by if by in ways else ways[0] if ways and choice.row is not None else ""
        shown.append(
            {
                "ref": entry.ref,
                "said": entry.said,
                "row": row,
                "cards": cards(row.columns),
                "tokens": tokens.tokens(row.columns, way, text_of) if way else [],
                "by": way,
                "lists": [name for name, value in row.columns.items() if tokens.is_numbers(value)],
            }
        )
    alone = read[0][1].columns if choice.row is not None and len(read) == 1 else None
    return content | {
        "rows": shown, "by": by or next((each["by"] for each in shown), ""),
        "ops": named.operators, "columns": named.columns, "only": list(FAULTS), "ratios": named.paired,
        "alone": alone is not None,
        "ways": sorted({way for _, row in read for way in _ways(row.columns)}),
        "token_lines": token_lines(alone, text_of) if alone is not None else [],
        "scatter": scatter(content["passing"]) if choice.row is None else None,
        "heads": columns_of_table(choice), "beside": neighbours(kept, choice) if alone is not None else None,
        "ids": query.get("ids") == "1",
    }  # fmt: skip


def _choice(query: Mapping[str, str]) -> Choice:
    return Choice(
        query.get("op", ""), _number(query.get("step")), query.get("find", ""), query.get("only", ""),
        query.get("sort", ""), _number(query.get("first")) or 0, group=query.get("group"),
        row=_number(query.get("row")), rank=query.get("rank", ""),
    )  # fmt: skip


def _why(run: Viewed, kept: Sequence[Entry], step: int) -> str | None:
    run.facts.metrics()  # reads on
    return why_reward(kept, step, dict(zip(*run.facts.points(REWARDS[0]), strict=True)))


def link(choice: Choice, by: str, changes: Mapping[str, object]) -> str:
    """Return the address of the page with `choice` and `changes`, relative to it. None removes a filter."""
    given = choice._asdict() | {"by": by} | dict(changes)
    del given["size"]
    given["first"] = given["first"] or None
    wanted = {name: value for name, value in given.items() if value is not None and value != ""}
    return "?" + urlencode({name: str(value) for name, value in wanted.items()}, errors="replace")


def token_lines(columns: Mapping[str, Any], text_of: Callable[[int], str] | None = None) -> list[TokenLine]:
    """Return one line per token of a row that has the log-probabilities of trainer and sampler; else nothing."""
    names = policies_of(columns)
    if names is None:
        return []
    trainer, sampler = (tokens.numbers_of(columns[name]) for name in names)
    coloured = tokens.tokens(columns, tokens.DIFFERENCE.join(names), text_of)
    return [
        TokenLine(at, token.text, one, other, one - other, _exp(one - other), token.shade)
        for at, (token, one, other) in enumerate(zip(coloured, trainer, sampler, strict=False))
    ]


def _ways(columns: Mapping[str, Any]) -> list[str]:
    """Return the colourings of a row: by the difference of trainer and sampler first."""
    names = policies_of(columns)
    first = [tokens.DIFFERENCE.join(names)] if names else []
    reverse = {tokens.DIFFERENCE.join(reversed(names))} if names else set()
    return first + [way for way in tokens.colourings(columns) if way not in {*first, *reverse}]


def _exp(difference: float) -> float:
    return math.exp(min(700.0, difference)) if math.isfinite(difference) else math.nan


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None
