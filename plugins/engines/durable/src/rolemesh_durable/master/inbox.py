"""The events that wait for the master's next turn, bounded, because a failing journal may delay that turn."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from itertools import count
from typing import TypeAlias

from rolemesh_durable.protocol.master import events as e

__all__ = ["Inbox"]

KEPT = 16
"""Maximum number of waiting messages of one kind and agent. Older ones are dropped: agents repeat everything."""

_Key: TypeAlias = tuple[object, ...]


class Inbox:
    """Events in the order in which they came. Any thread may call `put`.

    For events of which only the newest counts, older ones are dropped: an agent's messages beyond `KEPT`, signs of
    life, requests to stop. Everything else is rare, or answers an action of the master.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: OrderedDict[int, e.Event] = OrderedDict()
        self._known: dict[_Key, deque[int]] = {}
        self._numbers = count()

    def put(self, event: e.Event) -> None:
        """Add an event. It may replace an older one."""
        key, kept = _newest_counts(event)
        with self._lock:
            number = next(self._numbers)
            self._events[number] = event
            if kept:
                numbers = self._known.setdefault(key, deque())
                numbers.append(number)
                if len(numbers) > kept:
                    del self._events[numbers.popleft()]

    def take(self) -> list[e.Event]:
        """Return all waiting events, in order."""
        with self._lock:
            events = list(self._events.values())
            self._events.clear()
            self._known.clear()
        return events


def _newest_counts(event: e.Event) -> tuple[_Key, int]:
    """Return the kind of `event`, and how many of that kind to keep; 0: all of them."""
    match event:
        case e.FromAgent(agent, message):
            return (agent, getattr(message, "incarnation", 0), type(message)), KEPT
        case e.OwnerSeen() | e.StopAsked() | e.Disown():
            return (type(event),), 1
    return (), 0
