"""The marks of a picture over time: failures, recoveries and resizes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rolemesh.api.observer import Event
from rolemesh_facts.recoveries import Story
from rolemesh_facts.sizes import sizes_of

__all__ = ["Mark", "marks"]


FARTHEST_S = 1e11
"""Later times, in seconds since 1970, are damaged ones."""


class Mark(NamedTuple):
    """An incident from `t` to `end`, in µs since 1970. `kind` is ``failure``, ``recovery`` or ``resize``.

    A recovery without a failure, as after a lost node, is a ``recovery``.
    """

    t: int
    end: int
    kind: str
    text: str


def marks(stories: Iterable[Story], events: Iterable[Event], end: int = 1 << 62) -> list[Mark]:
    """Return the marks by their begin. A failure lasts until the ranks are where they had been.

    A mark behind `end`, in µs since 1970, lies there: the failure that ends a job is later than all records.
    """
    found = [_of_story(story) for story in stories]
    asked: dict[object, Event] = {}
    for event in events:
        number = event.data.get("number")
        if event.kind == "resize_asked" and isinstance(number, int):
            asked[number] = event
        elif event.kind == "resized" and isinstance(number, int):
            begin = asked.get(number, event).time
            text = ", ".join(f"{role} has {size} rank{'s' * (size != 1)}" for role, size in sizes_of(event).items())
            found.append(Mark(_us(begin), _us(event.time), "resize", f"resize: {text}"))
    return sorted(mark._replace(t=min(mark.t, end), end=min(mark.end, end)) for mark in found)


def _of_story(story: Story) -> Mark:
    after = story.regained_s or story.ready_s or 0.0
    failed = [_failed(failure) for failure in story.failures]
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    recovery = f"recovery {story.number} ({story.level})" if story.number else "no recovery"
    times = ((story.ready_s, "ready"), (story.regained_s, "caught up"))
    told = [f"{text} after {seconds:.3g} s" for seconds, text in times if seconds is not None]
    text = ", ".join([f"{failed[0]}{more}; {recovery}" if failed else f"{recovery}: {story.reason}", *told])
    return Mark(_us(story.began), _us(story.began + after), "failure" if failed else "recovery", text)


def _us(seconds: float) -> int:
    return int(max(0.0, min(seconds, FARTHEST_S)) * 1e6)


def _failed(failure: dict[str, object]) -> str:
    cause = failure.get("message") or failure.get("text") or failure.get("cause") or "failed"
    return f"{failure.get('role', '?')}/{failure.get('rank', '?')}: {cause}"
