"""The parts of extensions in an agent: their contract, and those that have no other test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine.extensions.agent_process import Answer, Ask, FakeAgent, Strange, Told
from tests.unit.engine.extensions.master_shell import running

from rolemesh_durable.agent import parts
from rolemesh_durable.extensions.hangs.messages import Stacks
from rolemesh_durable.extensions.rehearsal.agent import AgentInjector
from rolemesh_durable.extensions.rehearsal.messages import Inject
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.extension_message import FromPart, Sealed, ToPart
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.extension import MasterExtension
from rolemesh_durable.protocol.master.hooks import Handler
from rolemesh_durable.protocol.refs import StartRef

WORK = StartRef("work", 0, 4)


def test_a_message_that_no_part_knows_is_dropped(tmp_path: Path) -> None:
    fake = FakeAgent(tmp_path)
    known = parts.Parts(fake.process, [Strange(None)])
    known.handle(Sealed.of(Told(())))
    assert fake.events.empty()
    known.handle(Sealed.of(Ask("here")))
    assert fake.sent(Answer) == Answer("here: yes")


def test_the_message_of_an_older_master_reaches_no_part(tmp_path: Path) -> None:
    machine = FakeAgent(tmp_path).machine
    ask = ToPart.of(2, Ask("now"))
    assert ask in machine.handle(ae.FromMaster(ask), 1.0)
    older = ToPart.of(1, Ask("then"))
    assert not any(isinstance(effect, ToPart) for effect in machine.handle(ae.FromMaster(older), 1.1))


class Asking(MasterExtension):
    """Has two commands of the same kind of message for the agent, until it has an answer."""

    def handlers(self) -> Mapping[type, Handler]:
        return {Answer: self._answered}

    answer = ""

    def _answered(self, answer: Answer) -> None:
        self.answer = answer.text

    def commands(self, agent: Any, ranks: Any) -> tuple[ToPart, ...]:
        return () if self.answer else (ToPart.of(1, Ask("a")), ToPart.of(1, Inject("kill")))


def test_the_master_repeats_the_commands_of_extensions_each_by_itself_until_they_are_withdrawn() -> None:
    machine = running(extensions=(Asking,))
    report = m.Report("a0", 1, 9000, "n0", "h", 1, "", 1, -1, (m.RankReport("work", 0, 0, "ready", 100),))
    machine.handle(e.FromAgent("a0", report), 9.0)

    def parts_of(now: float) -> list[str]:
        effects = machine.handle(e.Tick(), now)
        return [
            each.message.message.name
            for each in effects
            if isinstance(each, e.ToAgent) and isinstance(each.message, ToPart)
        ]

    assert parts_of(9.1) == []
    assert parts_of(10.0) == ["stranger.ask", "rehearsal.inject"]
    machine.handle(e.FromAgent("a0", FromPart(Sealed.of(Stacks("work", 0, 0, "nobody has asked")))), 10.1)
    machine.handle(e.FromAgent("a0", FromPart(Sealed.of(Answer("yes")))), 10.1)
    assert machine.extension(Asking).answer == "yes"
    assert parts_of(11.0) == []


@pytest.mark.parametrize(
    ("kind", "rank", "done"),
    [
        ("kill", 0, ("kill", WORK)),
        ("stop", 0, ("freeze", WORK)),
        ("raise", 0, ("to rank", ("work", 0), m.Fault("raise"))),
        ("zygote", -1, ("zygote",)),
        ("disk", -1, ("disk",)),
        ("kill", 1, None),
    ],
)
def test_a_rehearsal_injects_failures_into_ranks_that_have_a_process(
    tmp_path: Path, kind: Any, rank: int, done: tuple[Any, ...] | None
) -> None:
    fake = FakeAgent(tmp_path)
    inject = AgentInjector(fake.process).messages()[Inject]
    inject(Inject(kind, "work" if rank >= 0 else "", rank))
    assert fake.done == ([done] if done is not None else [])
    fake.done.clear()
    fake.machine.handle(ae.RankExited("work", 0, 4, signal=9), 1.0)
    inject(Inject("kill", "work", 0))
    assert fake.done == []
