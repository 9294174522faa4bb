"""The ties between calls of tools and their answers: the ids of the calls. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh_agents.actions import Message, ToolCall

__all__ = ["tied"]


def tied(messages: Sequence[Message], calls: Sequence[ToolCall]) -> list[Message]:
    """Return messages after a turn with these calls: the answers of tools first, in the order of the calls.

    Many templates tie an answer to its call by its place, or by the name of the tool. So each answer gets the `name` of
    the call that its `tool_call_id` names. Answers with other ids follow, and their names are "" if they have none.
    """
    places = {call.id: place for place, call in enumerate(calls)}
    found: list[tuple[int, Message]] = []
    run = 0
    for message in messages:
        if message.get("role") != "tool":
            run += len(calls) + 1
            found.append((run, message))
            run += 1
            continue
        place = places.get(str(message.get("tool_call_id") or ""))
        name = message.get("name") if place is None else calls[place].name
        message = {**message, "name": name or ""} if calls else message
        found.append((run + (len(calls) if place is None else place), message))
    return [message for _, message in sorted(found, key=lambda each: each[0])]
