"""The answers of the role `environment` as plain values, which travel to the agent and into its log. Pure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rolemesh_agents.environment import Observation, Outcome, Reward, Start

__all__ = ["as_observation", "as_outcome", "as_reward", "as_start", "cut"]


def as_start(found: Any) -> dict[str, Any]:
    """Return `messages` and `tools`. Raises `TypeError` for anything but a `Start` of JSON values."""
    start = _checked(found, Start)
    plain = msgspec.json.decode(msgspec.json.encode(start))
    return {"messages": plain["messages"], "tools": plain["tools"]}


def as_observation(found: Any, most_bytes: int) -> dict[str, Any]:
    """Return `content`, at most `most_bytes` of it, and `done`."""
    answer = _checked(found, Observation)
    return {"content": cut(answer.content, most_bytes), "done": bool(answer.done)}


def as_outcome(found: Any) -> dict[str, Any]:
    """Return `messages` and `done`."""
    outcome = _checked(found, Outcome)
    return {"messages": msgspec.json.decode(msgspec.json.encode(outcome.messages)), "done": bool(outcome.done)}


def as_reward(found: Any) -> dict[str, Any]:
    """Return `value`, `parts` and `success`. Raises `ValueError` for a reward that is not a finite number."""
    reward = _checked(found, Reward)
    values = {"reward": float(reward.value), **{name: float(part) for name, part in reward.parts.items()}}
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, not a finite number")
    success = None if reward.success is None else bool(reward.success)
    parts = {name: value for name, value in values.items() if name in reward.parts}
    return {"value": float(reward.value), "parts": parts, "success": success}


def cut(text: str, most_bytes: int) -> str:
    """Return at most `most_bytes` of `text` as UTF-8, with a note on what is missing. Lone surrogates become "?"."""
    if len(text) > most_bytes:
        kept, missing = text[:most_bytes], len(text) - most_bytes
    else:
        kept, missing = text, 0
    data = kept.encode("utf-8", "replace")
    missing += max(0, len(data) - most_bytes)
    whole = data[:most_bytes].decode("utf-8", "ignore")
    return f"{whole}\n[{missing} more bytes are left out]" if missing else whole


def _checked(found: Any, wanted: type[Any]) -> Any:
    if not isinstance(found, wanted):
        raise TypeError(f"the episode returned {type(found).__name__} instead of {wanted.__name__}")
    return found
