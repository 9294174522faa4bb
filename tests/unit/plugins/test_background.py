"""Observers that are called beside whoever has the news."""

from __future__ import annotations

import threading
from typing import Any

from rolemesh.plugins.background import Background


class Recorder:
    """Notes its calls; waits at the first until it may go on."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.entered, self.go_on = threading.Event(), threading.Event()

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        self.entered.set()
        assert self.go_on.wait(10)
        self.seen.append((hook, next(iter(arguments.values()))))


def test_hooks_are_called_in_order_and_of_the_statuses_that_wait_only_the_latest() -> None:
    slow = Recorder()
    relay = Background(slow)
    relay.broadcast("event", event=1)
    assert slow.entered.wait(10)
    for number in range(3):
        relay.broadcast("status", status=number)
    relay.broadcast("event", event=2)
    relay.close()

    assert not relay.wait(0)
    slow.go_on.set()
    assert relay.wait(10)
    assert slow.seen == [("event", 1), ("status", 2), ("event", 2)]
