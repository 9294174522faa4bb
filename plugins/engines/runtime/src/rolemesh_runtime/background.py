"""Observers in threads of their own. The sender of news never waits for them, and they do not wait for each other.

An observer that is slower than its job falls behind by a limited amount. Beyond that, news are dropped, and it is
notified of that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from rolemesh.api.observer import Missed

__all__ = ["MOST_BEHIND", "Background", "Teller"]

log = logging.getLogger("rolemesh.plugins")

MOST_BEHIND = 4096
"""Maximum number of events and lines of metrics that wait for one observer."""
SETTLE_S = 0.01
HANGS_S = 1.0
"""Seconds in one call after which nobody waits for an observer."""
KEPT = ("job_started", "job_ended")
"""Hooks whose news are never dropped."""


Teller: TypeAlias = Callable[..., object]
"""Function ``tell(hook, **arguments)`` that calls the hook of one observer, if it has it, and returns its answer: a
text is a problem that lasts until the next answer."""


class _Observers(Protocol):
    def each(self) -> Mapping[str, Teller]:
        """Return the function of each observer, by the name that is shown to users."""


class Background:
    """Calls every observer's hooks in the order of the news, each observer in a thread of its own.

    Waiting lines of metrics are passed on together, and only the latest status is passed on. Beyond `most_behind` the
    oldest news are dropped, and the hook `missed` reports that in order.
    """

    def __init__(self, observers: _Observers, most_behind: int = MOST_BEHIND) -> None:
        self._queues = [_Queue(name, tell, most_behind) for name, tell in observers.each().items()]

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        """Queue a call of every observer's `hook`."""
        for queue in self._queues:
            queue.put(hook, arguments)

    def settle(self) -> None:
        """Wait until all observers that return from their hooks have room again, for a sender that has more news at
        once.

        An observer that does not return is not waited for.
        """
        while any(queue.crowded for queue in self._queues):
            time.sleep(SETTLE_S)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return which observers are behind, with what they have missed, and the problems that observers have."""
        return tuple(filter(None, (text for queue in self._queues for text in (queue.warning, queue.problem))))

    def close(self) -> None:
        """No more news follow."""
        for queue in self._queues:
            queue.close()

    def wait(self, timeout_s: float) -> bool:
        """Return whether the observers receive everything within `timeout_s` after `close`."""
        deadline = time.monotonic() + timeout_s
        return all(queue.join(max(0.0, deadline - time.monotonic())) for queue in self._queues)

    def hang(self, limit_s: float) -> bool:
        """Return whether all observers with waiting news have been in one call for `limit_s`."""
        return all(queue.calling_s >= limit_s for queue in self._queues if not queue.join(0.0))

    def give_up(self) -> tuple[str, ...]:
        """Return, for each observer that has not returned, the news that it did not receive."""
        return tuple(queue.left for queue in self._queues if not queue.join(0.0))


class _Queue:
    """The waiting news of one observer."""

    def __init__(self, name: str, tell: Teller, most: int) -> None:
        self._name, self._tell, self._most = name, tell, most
        self._waiting: deque[tuple[str, Any]] = deque()
        self._droppable = 0
        self._missed = Missed()
        self._status: dict[str, Any] | None = None
        self._closing = False
        self._news = threading.Condition()
        self._calling: tuple[str, float] | None = None
        self.problem = ""
        self._thread = threading.Thread(target=self._serve, name=f"observer {name}", daemon=True)
        self._thread.start()

    def put(self, hook: str, arguments: dict[str, Any]) -> None:
        with self._news:
            if hook == "status":
                waits, self._status = self._status is not None, arguments
                if not waits:
                    self._waiting.append((hook, None))
            elif hook == "steps_finished":
                self._waiting.extend((hook, line) for line in arguments["metrics"])
                self._droppable += len(arguments["metrics"])
            else:
                self._waiting.append((hook, arguments))
                self._droppable += hook not in KEPT
            while self._droppable > self._most:
                self._drop_oldest()
            self._news.notify()

    def close(self) -> None:
        with self._news:
            self._closing = True
            self._news.notify()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def crowded(self) -> bool:
        """Return whether it is half full and its observer is at work."""
        return self._droppable > self._most // 2 and self.calling_s < HANGS_S

    @property
    def calling_s(self) -> float:
        calling = self._calling
        return time.monotonic() - calling[1] if calling is not None else 0.0

    @property
    def warning(self) -> str:
        with self._news:
            missed = self._missed
        return f"observer {self._name} is too slow for this job: it will not be told of {missed}" if missed else ""

    @property
    def left(self) -> str:
        """Return the news that the observer, which has not returned, did not receive."""
        calling = self._calling
        with self._news:
            while self._droppable:
                self._drop_oldest()
            hooks = [hook for hook, _ in self._waiting if hook in KEPT]
            what = [str(self._missed)] if self._missed else []
        what += ["the job's start"] * ("job_started" in hooks) + ["the job's end"] * ("job_ended" in hooks)
        told = f"it has not been told of {' and '.join(what)}" if what else "it has been told everything"
        if calling is None:
            return f"observer {self._name}: {told}"
        return f"observer {self._name} has not returned from its hook {calling[0]!r} for {self.calling_s:.0f} s: {told}"

    def _drop_oldest(self) -> None:
        kept = []
        while (item := self._waiting.popleft())[0] in (*KEPT, "status"):
            kept.append(item)
        self._waiting.extendleft(reversed(kept))
        self._droppable -= 1
        hook, what = item
        if not self._missed:
            log.warning("observer %s is too slow for this job: it is not told of everything", self._name)
        match hook:
            case "steps_finished":
                self._missed = _and_line(self._missed, what.step - what.steps + 1, what.step)
            case "event":
                self._missed = _and_event(self._missed, what["event"].seq)

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            hook, arguments = call
            self._calling = (hook, time.monotonic())
            told = self._tell(hook, **arguments)
            self.problem = f"observer {self._name}: {told}" if isinstance(told, str) and told else ""
            self._calling = None

    def _next(self) -> tuple[str, dict[str, Any]] | None:
        """The next hook to call, as soon as there is one; None at the end."""
        with self._news:
            while not (self._waiting or self._missed or self._closing):
                self._news.wait()
            started = bool(self._waiting) and self._waiting[0][0] == "job_started"
            if self._missed and not started:
                missed, self._missed = self._missed, Missed()
                return "missed", {"missed": missed}
            if not self._waiting:
                return None
            hook, what = self._waiting.popleft()
            if hook == "status":
                status, self._status = self._status, None
                return hook, status or {}
            if hook != "steps_finished":
                self._droppable -= hook not in KEPT
                return hook, what
            lines = [what]
            while self._waiting and self._waiting[0][0] == hook:
                lines.append(self._waiting.popleft()[1])
            self._droppable -= len(lines)
            return hook, {"metrics": tuple(lines)}


def _and_event(missed: Missed, seq: int) -> Missed:
    """And the event `seq`, which is later."""
    first = missed.first_event if missed.events else seq
    return msgspec.structs.replace(missed, events=missed.events + 1, first_event=first, last_event=seq)


def _and_line(missed: Missed, first: int, last: int) -> Missed:
    """And the line of the steps `first` to `last`, which are later."""
    first = missed.first_step if missed.lines else first
    return msgspec.structs.replace(missed, lines=missed.lines + 1, first_step=first, last_step=last)
