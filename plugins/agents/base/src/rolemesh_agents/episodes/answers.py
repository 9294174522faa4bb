"""The answers of the role `environment` as plain values, which travel to the agent and into its log. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from rolemesh_agents.actions import Tool
from rolemesh_agents.contract import breach, instance, kind_of, messages_of, reward_of, truth
from rolemesh_agents.environment import Observation, Outcome, Start

__all__ = ["as_observation", "as_outcome", "as_reward", "as_start", "cut"]


def as_start(found: Any) -> dict[str, Any]:
    """Return `messages` and `tools`. Raises a `breach` for anything but a `Start` of messages and tools with different
    names."""
    start = instance(found, Start, "Episode.reset returned")
    tools = [instance(tool, Tool, "Episode.reset returned in Start.tools") for tool in start.tools]
    for name, count in Counter(tool.name for tool in tools).items():
        if count > 1:
            raise breach(f"Episode.reset returned {count} tools with the name {name!r}")
    messages = messages_of(start.messages, "Episode.reset returned")
    return {"messages": messages, "tools": msgspec.json.decode(msgspec.json.encode(tools))}


def as_observation(found: Any, most_bytes: int) -> dict[str, Any]:
    """Return `content`, at most `most_bytes` of it, and `done`."""
    source = "Episode.call returned an Observation"
    answer = instance(found, Observation, "Episode.call returned")
    if not isinstance(answer.content, str):
        raise breach(f"{source} whose content is {kind_of(answer.content)} instead of text")
    return {"content": cut(answer.content, most_bytes), "done": truth(answer.done, source, "done")}


def as_outcome(found: Any) -> dict[str, Any]:
    """Return `messages` and `done`."""
    outcome = instance(found, Outcome, "Episode.reply returned")
    done = truth(outcome.done, "Episode.reply returned an Outcome", "done")
    return {"messages": messages_of(outcome.messages, "Episode.reply returned"), "done": done}


def as_reward(found: Any) -> dict[str, Any]:
    """Return `value`, `parts` and `success`. Raises a `breach` for a reward that is not a finite number."""
    reward = reward_of(found, "Episode.reward returned")
    return {"value": reward.value, "parts": dict(reward.parts), "success": reward.success}


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
