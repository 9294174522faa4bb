"""The answers of the role `environment` as plain values, which travel to the agent and into its log. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rolemesh_agents.actions import Tool
from rolemesh_agents.environment import Observation, Outcome, Reward, Start

__all__ = ["as_observation", "as_outcome", "as_reward", "as_start", "cut"]


def as_start(found: Any) -> dict[str, Any]:
    """Return `messages` and `tools`. Raises `TypeError` for anything but a `Start` of messages and tools with different
    names."""
    start = _checked(found, Start, "reset")
    tools = [_checked(tool, Tool, "reset", "in Start.tools ") for tool in start.tools]
    for name, count in Counter(tool.name for tool in tools).items():
        if count > 1:
            raise TypeError(f"Episode.reset returned {count} tools with the name {name!r}")
    return {"messages": _messages(start.messages, "reset"), "tools": msgspec.json.decode(msgspec.json.encode(tools))}


def as_observation(found: Any, most_bytes: int) -> dict[str, Any]:
    """Return `content`, at most `most_bytes` of it, and `done`."""
    answer = _checked(found, Observation, "call")
    if not isinstance(answer.content, str):
        raise TypeError(
            f"Episode.call returned an Observation whose content is {_kind(answer.content)} instead of text"
        )
    return {
        "content": cut(answer.content, most_bytes),
        "done": _truth(answer.done, "call returned an Observation", "done"),
    }


def as_outcome(found: Any) -> dict[str, Any]:
    """Return `messages` and `done`."""
    outcome = _checked(found, Outcome, "reply")
    done = _truth(outcome.done, "reply returned an Outcome", "done")
    return {"messages": _messages(outcome.messages, "reply"), "done": done}


def as_reward(found: Any) -> dict[str, Any]:
    """Return `value`, `parts` and `success`. Raises `ValueError` for a reward that is not a finite number."""
    reward = _checked(found, Reward, "reward")
    success = None if reward.success is None else _truth(reward.success, "reward returned a Reward", "success")
    parts = {str(name): _number(part, f"Reward.parts[{name!r}]") for name, part in reward.parts.items()}
    return {"value": _number(reward.value, "Reward.value"), "parts": parts, "success": success}


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


def _messages(found: Sequence[Any], method: str) -> list[dict[str, Any]]:
    """Return chat messages as JSON values. Text that comes in parts becomes one text."""
    for each in found:
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise TypeError(f"Episode.{method} returned the message {each!r:.200} without a role")
    plain = msgspec.json.decode(msgspec.json.encode([_with_text(each, method) for each in found]))
    return [dict(each) for each in plain]


def _with_text(message: dict[str, Any], method: str) -> dict[str, Any]:
    role, content = message["role"], message.get("content")
    if isinstance(content, list | tuple):
        kinds = {part.get("type") if isinstance(part, dict) else type(part).__name__ for part in content}
        if kinds - {"text"}:
            kind = ", ".join(sorted(map(str, kinds - {"text"})))
            raise TypeError(f"Episode.{method} returned a message of {role} with {kind}; a conversation has text only")
        content = "".join(str(part["text"]) for part in content)
    if not isinstance(content, str) and not (content is None and role == "assistant"):
        raise TypeError(
            f"Episode.{method} returned a message of {role} whose content is {_kind(content)} instead of text"
        )
    return message if content is None else message | {"content": _encodable(content)}


def _encodable(text: str) -> str:
    """Return `text` with "?" for lone surrogates, which UTF-8 cannot express."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _number(found: Any, what: str) -> float:
    """Return a finite number. Raises `TypeError` and `ValueError`."""
    if isinstance(found, str | bytes):
        raise TypeError(f"{what} is {found!r:.100}, not a number")
    try:
        value = float(found)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} is {found!r:.100}, not a number") from error
    if not math.isfinite(value):
        raise ValueError(f"{what} is {value}, not a finite number")
    return value


def _truth(found: Any, where: str, name: str) -> bool:
    if not isinstance(found, bool | np.bool_):
        raise TypeError(f"Episode.{where} whose {name} is {found!r:.100} instead of True or False")
    return bool(found)


def _checked(found: Any, wanted: type[Any], method: str, where: str = "") -> Any:
    if not isinstance(found, wanted):
        raise TypeError(f"Episode.{method} returned {where}{_kind(found)} instead of {wanted.__name__}")
    return found


def _kind(found: Any) -> str:
    return "None" if found is None else type(found).__name__
