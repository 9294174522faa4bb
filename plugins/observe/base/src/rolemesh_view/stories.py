"""Events and recoveries in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rolemesh.api.observer import Event
from rolemesh_console.sentences import described
from rolemesh_facts.recoveries import Story
from rolemesh_view.text import duration

__all__ = ["Told", "deaths", "event_text", "told_of"]

DEATHS: Final = ("agent_died", "master_recovered")
"""Kinds of events about a death that may need no recovery of ranks."""
BEFORE_S = 2.0
"""Seconds before a first symptom in which an injected failure counts as its cause."""


class Told(NamedTuple):
    """A recovery with its outcome in words. `injected`: what a rehearsal did just before."""

    story: Story
    level: str
    ready: str
    regained: str
    injected: Sequence[str]


def event_text(event: Event) -> str:
    """Return the sentence about an event, or its data as ``name=value``."""
    try:
        said = described(event)
    except Exception:  # a damaged event, or one of another version
        said = None
    if said:
        return said
    told = ((name, value) for name, value in event.data.items() if value not in ("", None))
    return " ".join(f"{name}={value if isinstance(value, str) else _json(value)}" for name, value in told)


def told_of(stories: Sequence[Story], events: Iterable[Event], status: str) -> list[Told]:
    """Return the recoveries with their outcome. `status` is that of the job's result; "" if it has not ended."""
    injected = [event for event in events if event.kind == "injected"]
    found = []
    for at, story in enumerate(stories):
        later = next((each.number for each in stories[at + 1 :] if each.number and each.failures), 0)
        if not story.number:
            level, open_ = "none", f"the job is {status}" if status else "no level has proposed anything yet"
        else:
            level = story.level
            open_ = f"replaced by recovery {later}" if later else f"no: the job is {status}" if status else "not yet"
        found.append(
            Told(
                story, level,
                duration(story.ready_s) or open_, duration(story.regained_s) or open_,
                [event_text(each) for each in injected if _may_cause(each, story, stories)],
            )
        )  # fmt: skip
    return found


def _may_cause(fault: Event, story: Story, stories: Iterable[Story]) -> bool:
    """Return whether an injected failure came just before a story, unless its rank failed in another one only."""
    hit = [each for each in stories if -BEFORE_S <= fault.time - each.began <= 0]
    of_rank = [each for each in hit if fault.data.get("target") in _ranks(each)]
    return story in (of_rank or hit)


def _ranks(story: Story) -> set[str]:
    return {f"{failure.get('role')}/{failure.get('rank')}" for failure in story.failures}


def deaths(events: Iterable[Event]) -> list[Event]:
    """Return the deaths of masters, agents and nodes. Ranks go on meanwhile, unless a recovery says otherwise."""
    return [event for event in events if event.kind in DEATHS]


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        return repr(value)
