"""The processes of a harness under test, as the kit's process sees them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from rolemesh_testing.children import Child, PluginRaised
from rolemesh_testing.hanging import Hung
from rolemesh_testing.harnesses.wire import End, Ended, Failed, Held, Hold, Order, Ready, Reply, Request, SetUp, Talked
from rolemesh_testing.workloads.ranks import Stage

__all__ = ["SERVE", "HarnessLife", "HarnessSubject"]

R = TypeVar("R", bound=Reply)
SERVE = "rolemesh_testing.harnesses.life"


class HarnessSubject(msgspec.Struct, frozen=True):
    """The harness under test: its import path, its options as in a job file, and the job's folder."""

    target: str
    options: dict[str, Any]
    base: str


class HarnessLife:
    """One process with the harness. Its methods raise `PluginRaised`, `PluginDied` or `Hung`."""

    def __init__(self, stage: Stage, subject: HarnessSubject) -> None:
        self._timeout_s = stage.timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="rolemesh-conformance-"))
        self._log = self._folder / "calls"
        (self._folder / "tmp").mkdir()
        self._child = Child(stage)
        setup = SetUp(subject.target, subject.options, subject.base, str(self._folder / "tmp"), str(self._log))
        try:
            self._ask(setup, Ready, "setup()")
        except BaseException:
            self.close()
            raise

    def hold(self, *orders: Order) -> Sequence[Talked]:
        """Hold conversations, all at the same time."""
        return self._ask(Hold(orders), Held, "run()").talks

    def kill_at(self, order: Order, calls: int) -> tuple[list[str], list[str]]:
        """Hold a conversation, and kill the process when it waits for the answer to the call with the number `calls`.

        Returns the calls that it has made, and its former descendants that run on.
        """
        hanging = msgspec.structs.replace(order, hangs_at=calls)
        self._child.send(msgspec.msgpack.encode(Hold((hanging,))), "run()")
        until = time.monotonic() + self._timeout_s
        while len(made := self._made()) <= calls and not self._child.answered():
            if time.monotonic() > until:
                raise Hung(f"run() has made {len(made)} calls within {self._timeout_s:g} s, not {calls + 1}")
            time.sleep(0.005)
        return self._made(), self._child.kill()

    def end(self) -> Ended:
        """Close the harness, and return what is left."""
        return self._ask(End(), Ended, "close()")

    def close(self) -> None:
        """End the process, what it has started, and its temporary files."""
        self._child.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _made(self) -> list[str]:
        text = self._log.read_text() if self._log.exists() else ""
        return [line.partition(" ")[2] for line in text.split("\n")[:-1]]

    def _ask(self, request: Request, kind: type[R], doing: str) -> R:
        self._child.send(msgspec.msgpack.encode(request), doing)
        reply = msgspec.msgpack.decode(self._child.receive(doing), type=Reply)
        if isinstance(reply, Failed):
            raise PluginRaised(f"{doing} raised {reply.error}\n{reply.trace}")
        assert isinstance(reply, kind), f"the process answered {reply} to {request}"
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
