"""The processes of a harness under test, as the kit's process sees them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from rolemesh_testing.children import Child
from rolemesh_testing.hanging import Hung
from rolemesh_testing.harnesses.wire import End, Ended, Held, Hold, Order, Ready, Reply, SetUp, Talked
from rolemesh_testing.workloads.ranks import Stage

__all__ = ["SERVE", "HarnessLife", "HarnessSubject"]

SERVE = "rolemesh_testing.harnesses.life"


class HarnessSubject(msgspec.Struct, frozen=True):
    """The harness under test: its import path, its options as in a job file, and the job's folder."""

    target: str
    options: dict[str, Any]
    base: str


class HarnessLife(Child):
    """One process with the harness. Its methods raise `PluginRaised`, `PluginDied` or `Hung`."""

    replies: ClassVar[Any] = Reply

    def __init__(self, stage: Stage, subject: HarnessSubject) -> None:
        super().__init__(stage)
        self._log, temporary = self._folder / "calls", self._folder / "tmp"
        temporary.mkdir()
        setup = SetUp(subject.target, subject.options, subject.base, str(temporary), str(self._log))
        self.begin(setup, Ready, "setup()")

    def hold(self, *orders: Order) -> Sequence[Talked]:
        """Hold conversations, all at the same time."""
        return self.ask(Hold(orders), Held, "run()").talks

    def kill_at(self, order: Order, calls: int) -> tuple[list[str], list[str]]:
        """Hold a conversation, and kill the process when it waits for the answer to the call with the number `calls`.

        Returns the calls that it has made, and its former descendants that run on.
        """
        hanging = msgspec.structs.replace(order, hangs_at=calls)
        self.send(Hold((hanging,)), "run()")
        until = time.monotonic() + self._timeout_s
        while len(made := self._made()) <= calls and not self.answered():
            if time.monotonic() > until:
                raise Hung(f"run() has made {len(made)} calls within {self._timeout_s:g} s, not {calls + 1}")
            time.sleep(0.005)
        return self._made(), self.kill()

    def end(self) -> Ended:
        """Close the harness, and return what is left."""
        return self.ask(End(), Ended, "close()")

    def _made(self) -> list[str]:
        text = self._log.read_text() if self._log.exists() else ""
        return [line.partition(" ")[2] for line in text.split("\n")[:-1]]
