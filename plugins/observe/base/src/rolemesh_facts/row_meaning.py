"""The meaning of a kept row for its sample, whatever its columns are called. Pure.

The names are those of our own plugins, and of rows as TRL, verl, verifiers, slime, NeMo RL and Gymnasium have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from sys import intern
from typing import Any, Final, NamedTuple

__all__ = ["FAULTS", "LONGEST", "MASKS", "REWARDS", "Meaning", "meaning"]

REWARDS: Final = ("reward", "rewards", "score", "total_reward")
"""Columns that may have a row's reward; the first one with a finite number counts."""
LONGEST: Final = 100
"""Maximum number of characters of a group, a task or an error; a longer text has one more."""

FLAGS: Final = ("truncated", "is_truncated")
ENDS: Final = ("ended", "end", "finish_reason", "finish", "stop_reason", "stop_condition", "termination", "status")
DONE: Final = ("is_completed", "terminated", "done")
WORDS: Final = {
    "finished": "finished stop stopped eos eos_token stop_sequence stop_token end_turn tool_calls tool_use "
    "function_call completed complete done success ok terminated",
    "truncated": "truncated length prompt_too_long model_length overlong incomplete timeout timeout_reached time_limit "
    "turns tokens seconds",
    "failed": "failed failure error has_error abort aborted exception crashed cancelled content_filter",
}  # fmt: skip
"""Words in the columns `ENDS`, by their meaning. A word that begins with ``max_`` means "truncated", too."""
_ENDS: Final = {word: end for end, words in WORDS.items() for word in words.split()}

ERRORS: Final = ("error", "errors", "exception", "failure", "failed", "traceback", "tool_error", "tool_errors")
MESSAGES: Final = ("messages", "completion", "trajectory")
COMPLETIONS: Final = (
    "completion_ids", "response_ids", "output_ids", "completion", "completions", "response", "responses", "output",
    "text", "generated_text",
)  # fmt: skip
MASKS: Final = ("completion_mask", "response_mask", "loss_mask")
"""Columns with 1 for each token that the model sampled; the first one that a row has counts."""
LENGTHS: Final = (
    "completion_length",
    "completion_lengths",
    "response_length",
    "completion_tokens",
    "length",
    "lengths",
)
GROUPS: Final = ("group", "group_id", "group_index", "uid")
TASKS: Final = (
    "task", "task_id", "task_name", "example_id", "data_source", "source_dataset", "env_name", "environment",
    "question", "problem", "entry", "prompt", "index",
)  # fmt: skip
VERSIONS: Final = ("weight_version", "weight_versions", "policy_version", "model_version", "versions")
_NOTHING: Final = (None, "", "none", "null", "nan", "false", "0")
_ODD: Final = ("nan", "inf", "-inf")
"""Texts that the recorder writes in place of such numbers."""


class Meaning(NamedTuple):
    """The meaning of a row. None stands for what the row does not say.

    - `end`: "finished", "truncated", "failed", or the row's own word if it is another one.
    - `error`: what went wrong: in the sample, in its judgement, or in a tool that it called.
    - `empty`: whether its completion has no tokens or no text.
    - `tokens`: the number of sampled tokens, also of its other samples.
    - `reward`: a finite number. `odd`: the first column that has NaN, infinity or nothing in place of a number.
    - `group`, `task`: their texts. `version`: that of the oldest weights that sampled one of its tokens.
    """

    end: str | None
    error: str | None
    empty: bool
    tokens: int | None
    reward: float | None
    odd: str | None
    group: str | None
    task: str | None
    version: int | None


FAULTS: Final[Mapping[str, Callable[[Meaning], bool]]] = {
    "truncated": lambda said: said.end == "truncated",
    "failed": lambda said: said.end == "failed" or said.error is not None,
    "empty": lambda said: said.empty,
    "no number": lambda said: said.odd is not None,
}
"""Faults of a row, by name."""


def meaning(columns: Mapping[str, Any]) -> Meaning:
    """Return what a row with these columns says, as the recorder keeps them."""
    error = _error(columns)
    return Meaning(
        _end(columns) or ("failed" if error is not None else None),
        error or _tool_error(columns),
        _is_empty(columns),
        _tokens(columns),
        next((float(value) for value in _of(columns, REWARDS) if isinstance(value, bool) or _is_finite(value)), None),
        _odd(columns),
        _text(next(_of(columns, GROUPS), None)),
        _text(next(_of(columns, TASKS), None)),
        _version(columns),
    )


def _of(columns: Mapping[str, Any], names: Sequence[str]) -> Iterator[Any]:
    """Yield the values of those columns that say something."""
    return (columns[name] for name in names if columns.get(name) is not None)


def _end(columns: Mapping[str, Any]) -> str | None:
    if any(_is_true(value) for value in _of(columns, FLAGS)):
        return "truncated"
    for value in _of(columns, ENDS):
        word = value.get("type") if isinstance(value, Mapping) else value
        if isinstance(word, str) and word.lower() not in _NOTHING:
            known = _ENDS.get(word.lower(), "truncated" if word.lower().startswith("max_") else word)
            return intern(known[: LONGEST + 1])
    if any(_is_true(value) for value in _of(columns, DONE)) or any(True for _ in _of(columns, FLAGS)):
        return "finished"
    return None


def _error(columns: Mapping[str, Any]) -> str | None:
    for name, value in columns.items():
        exact = name in ERRORS
        if not exact and not name.endswith(("_error", "_errors", "_exception")):
            continue
        if isinstance(value, bool):
            said = name if value else None
        elif isinstance(value, int | float):  # a number of errors; of other columns it may be a deviation
            said = f"{name}: {value:g}" if exact and value > 0 else None
        else:
            said = None if not value or str(value).lower() in _NOTHING else _text(value)
        if said is not None:
            return said
    return None


def _tool_error(columns: Mapping[str, Any]) -> str | None:
    """Return the first answer of a tool that is an error: of MCP, of OpenEnv, and as chat messages mark one."""
    for messages in _of(columns, MESSAGES):
        for each in messages if isinstance(messages, list) else ():
            if isinstance(each, Mapping) and each.get("role") == "tool":
                said = each.get("content")
                marked = each.get("is_error") or each.get("isError") or each.get("status") == "error"
                if marked or (isinstance(said, str) and said.lower().startswith(("error", "traceback"))):
                    return _text(said if isinstance(said, str) and said else "error")
    return None


def _is_empty(columns: Mapping[str, Any]) -> bool:
    return any(not _has_content(value) for value in _of(columns, COMPLETIONS))


def _has_content(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list):
        return any(_has_content(each) for each in value)
    if isinstance(value, Mapping):
        return bool(value.get("tool_calls")) or _has_content(value.get("content"))
    return value is not None


def _tokens(columns: Mapping[str, Any]) -> int | None:
    others = columns.get("others")
    rest = [_tokens(each) or 0 for each in others if isinstance(each, Mapping)] if isinstance(others, list) else []
    own = next(_lengths(columns), None)
    return None if own is None else own + sum(rest)


def _lengths(columns: Mapping[str, Any]) -> Iterator[int]:
    for value in _of(columns, MASKS):
        if isinstance(value, list):
            yield value.count(1)
    for value in _of(columns, LENGTHS):
        if _is_finite(value):
            yield int(value)
    for value in _of(columns, (*COMPLETIONS, "logprobs")):
        if isinstance(value, list) and all(not isinstance(each, str | Mapping | list) for each in value):
            yield len(value)


def _odd(columns: Mapping[str, Any]) -> str | None:
    for name, value in columns.items():
        if name in REWARDS:
            odd = value is None or value in _ODD or (isinstance(value, list) and "nan" in value)
        elif any(part in name for part in ("logp", "advantage", "value", "return", "loss", "reward", "score")):
            odd = value in _ODD or (isinstance(value, list) and "nan" in value)
        else:
            odd = False
        if odd:
            return intern(name)
    return None


def _version(columns: Mapping[str, Any]) -> int | None:
    for value in _of(columns, VERSIONS):
        found = [each for each in (value if isinstance(value, list) else [value]) if _is_finite(each) and each >= 0]
        if found:
            return int(min(found))
    return None


def _text(value: Any) -> str | None:
    return None if value is None else intern(str(value)[: LONGEST + 1])


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_true(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_true, value))
    return value.lower() not in _NOTHING if isinstance(value, str) else bool(value)
