"""An agent's process for the parts of extensions, with a machine but without ranks; and a stranger's part."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import LogicalGraph
from rolemesh_durable.extensions import Extension
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.agent.machine import AgentMachine
from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess
from rolemesh_durable.protocol.agent.reporting import Identity
from rolemesh_durable.protocol.neighbours import Neighbours
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["Answer", "Ask", "FakeAgent", "Strange", "Told"]


class Ask(msgspec.Struct, frozen=True, tag="stranger.ask"):
    """The stranger's part in the master asks."""

    question: str


class Answer(msgspec.Struct, frozen=True, tag="stranger.answer"):
    """The stranger's part in the agent answers."""

    text: str


class Told(msgspec.Struct, frozen=True, tag="stranger.told"):
    """The stranger's part of each report."""

    calls: tuple[str, ...]


class Stranger(AgentPart):
    """Uses each hook."""

    def __init__(self, process: AgentProcess) -> None:
        super().__init__(process)
        self.calls: tuple[str, ...] = ()

    def messages(self) -> Mapping[type, Callable[[Any], None]]:
        return {Ask: lambda ask: self._process.send(Answer(f"{ask.question}: yes"))}

    def starting(self, launch: m.RankLaunch) -> Mapping[str, str]:
        self.calls = (*self.calls, f"starting {launch.ref}")
        return {"stranger": "here"}

    def gone(self, start: StartRef) -> None:
        self.calls = (*self.calls, f"gone {start}")

    def report(self) -> Told:
        return Told(self.calls)

    def close(self) -> None:
        self._process.logs.joinpath("closed").touch()


class Strange(Extension):
    """A stranger's extension."""

    def in_agent(self, process: AgentProcess) -> Stranger:
        return Stranger(process)


class FakeAgent:
    """The rank `work/0` runs, and `process` is what extensions get of the agent."""

    def __init__(self, folder: Path, pid: int = 0, **environ: str) -> None:
        self.machine = AgentMachine(Identity("a", "n"), 5.0, Neighbours(LogicalGraph("", (), ()), {}))
        self.machine.handle(ae.FromMaster(m.Launch(1, 0, (m.RankLaunch("work", 0, 1, 0, 1, 4),))), 0.0)
        self.machine.handle(ae.FromRank(m.RankHello("work", 0, 4, pid, {})), 0.1)
        self.events: SimpleQueue[ae.Event] = SimpleQueue()
        self.done: list[tuple[Any, ...]] = []
        unused: Any = None
        self.process = AgentProcess(
            unused, folder, folder, environ, lambda: self.machine, self, lambda ref: pid or os.getpid(),
            self._to_rank, self.events.put, lambda: self.done.append(("disk",)),
        )  # fmt: skip

    def sent(self, kind: type[Any]) -> Any:
        """The next message that a part sends to the master; it must be of this type. Waits for it."""
        event = self.events.get()
        assert isinstance(event, m.FromPart)
        return event.message.opened(kind)

    def _to_rank(self, ref: RankRef, message: m.AgentToRank) -> None:
        self.done.append(("to rank", ref, message))

    def kill(self, start: StartRef) -> bool:
        self.done.append(("kill", start))
        return True

    def freeze(self, start: StartRef) -> None:
        self.done.append(("freeze", start))

    def kill_zygote(self) -> None:
        self.done.append(("zygote",))
