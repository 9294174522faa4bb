"""What waits for the master's next turn, bounded: a turn may be long in coming while the journal cannot be written."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from itertools import count
from typing import TypeAlias

from rolemesh_durable.protocol.master import events as e

__all__ = ["Inbox"]

KEPT = 16
"""How many messages of one kind of one agent may wait. Older ones are dropped: agents say all of it again."""

_Key: TypeAlias = tuple[object, ...]


class Inbox:
    """Events in the order in which they came; `put` may be called from any thread.

    Of what is only worth its newest (an agent's messages beyond `KEPT`, signs of life, requests to stop) older ones are
    dropped. Everything else happens rarely, or only in answer to what the master does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: OrderedDict[int, e.Event] = OrderedDict()
        self._known: dict[_Key, deque[int]] = {}
        self._numbers = count()

    def put(self, event: e.Event) -> None:
        """Add an event; it may take the place of an older one."""
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
        """All that waits, in order."""
        with self._lock:
            events = list(self._events.values())
            self._events.clear()
            self._known.clear()
        return events


def _newest_counts(event: e.Event) -> tuple[_Key, int]:
    """What `event` is one of, and how many of those are worth keeping; 0: all of them."""
    match event:
        case e.FromAgent(agent, message):
            return (agent, getattr(message, "incarnation", 0), type(message)), KEPT
        case e.OwnerSeen() | e.StopAsked() | e.Disown():
            return (type(event),), 1
    return (), 0
