"""A rank calls the hooks of its extensions in the order of the list, and carries their messages to other ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import ValidationError

from rolemesh.api.partition import Split
from rolemesh.graph.logical import OpCall
from rolemesh_durable.extensions import Extension
from rolemesh_durable.extensions.shipped import SHIPPED
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.extension_message import ExtensionMessage
from rolemesh_durable.protocol.rank.extension import RankExtension, RankHooks
from rolemesh_durable.protocol.rank.page import IDLE
from rolemesh_durable.rank.frames import encode_control
from rolemesh_durable.rank.services import Rank

STEPS = 3
IN_RANK = [each for each in SHIPPED if each.rank]


class Recorder(RankExtension):
    """Appends each hook that the rank calls to `seen` of the workload."""

    name = ""

    def __init__(self, rank: Rank) -> None:
        self.seen: list[Any] = rank.workload.seen  # type: ignore[attr-defined]

    def wrap(self, op: OpCall, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(**arguments: Any) -> Any:
            self.seen.append((self.name, "operator", op.operator))
            return method(**arguments)

        return wrapped

    def opened(self, resume: int) -> None:
        self.seen.append((self.name, "opened", resume))

    def before_step(self, step: int) -> None:
        self.seen.append((self.name, "before_step", step))

    def before_inputs(self, op: OpCall, step: int) -> None:
        self.seen.append((self.name, "before_inputs", step))

    def before_call(self, op: OpCall, step: int) -> None:
        self.seen.append((self.name, "before_call", step))

    def step_done(self, step: int, held: bool) -> None:
        self.seen.append((self.name, "step_done", step, held))

    def steps_end(self, finished: int) -> None:
        self.seen.append((self.name, "steps_end", finished))


class First(Extension):
    def in_rank(self, rank: Rank) -> RankExtension | None:
        part = Recorder(rank)
        part.name = "first"
        return part


class Second(Extension):
    def in_rank(self, rank: Rank) -> RankExtension | None:
        part = Recorder(rank)
        part.name = "second"
        return part


class Absent(Extension):
    """Has no part in any rank."""


def test_hooks_run_in_the_order_of_the_list(fleet: Any, flow: Any, role: Any) -> None:
    graph, _ = flow
    made = graph(("a", "make", None), edges=[])
    a = lambda: role(make=lambda self: None)  # noqa: E731
    outcome = fleet.run(made, {"a": (a, 1)}, steps=1, extensions=(First, Absent, Second))["a", 0]
    assert not outcome.failure
    assert outcome.seen == [
        ("first", "opened", -1),
        ("second", "opened", -1),
        ("first", "before_step", 0),
        ("second", "before_step", 0),
        ("first", "before_inputs", 0),
        ("second", "before_inputs", 0),
        ("first", "before_call", 0),
        ("second", "before_call", 0),
        ("second", "operator", "make"),
        ("first", "operator", "make"),
        ("first", "step_done", 0, True),
        ("second", "step_done", 0, True),
        ("first", "steps_end", 0),
        ("second", "steps_end", 0),
    ]


def test_a_hook_that_no_extension_overrides_costs_nothing() -> None:
    class Idle(RankExtension):
        def idle(self) -> bool:
            return True

    part = Idle()
    hooks = RankHooks([part, RankExtension()])
    assert hooks.idle == (part.idle,)
    assert not any(value for name, value in vars(hooks).items() if name not in ("idle", "parts", "postpone_snapshots"))


class Greeter(Extension):
    """Each rank tells its neighbour which step it has finished."""

    def in_rank(self, rank: Rank) -> RankExtension | None:
        return Greeting(rank)


class Greeting(RankExtension):
    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.heard: list[Any] = []
        self.send = rank.open_channel("greetings", self.receive)

    def receive(self, role: str, rank: int, generation: int, body: bytes) -> None:
        self.heard.append((role, rank, generation, json.loads(body)))

    def step_done(self, step: int, held: bool) -> None:
        self.send("b" if self.rank.ctx.role == "a" else "a", 0, json.dumps({"finished": step}).encode())
        self.rank.record({f"finished {self.rank.ctx.role}/{self.rank.ctx.rank}": step})

    def steps_end(self, finished: int) -> None:
        self.rank.waits.until(lambda: len(self.heard) >= STEPS, IDLE)
        self.rank.workload.seen += self.heard  # type: ignore[attr-defined]


@pytest.mark.parametrize("nodes", [None, {("a", 0): "here", ("b", 0): "there"}])
def test_the_parts_of_an_extension_send_each_other_messages(fleet: Any, flow: Any, role: Any, nodes: Any) -> None:
    graph, edge = flow
    made = graph(("a", "make", "x"), ("b", "take", None), edges=[edge(0, 0, 1)])
    a = lambda: role(make=lambda self: [1])  # noqa: E731
    b = lambda: role(take=lambda self, x: None)  # noqa: E731
    found = fleet.run(made, {"a": (a, 1), "b": (b, 1)}, steps=STEPS, nodes=nodes, extensions=(Greeter,))
    for one, other in (("a", "b"), ("b", "a")):
        assert not found[one, 0].failure
        assert found[one, 0].seen == [(other, 0, 0, {"finished": step}) for step in range(STEPS)]
    records = [line.records for line in found["a", 0].lines]
    assert records == [{"finished a/0": step} for step in range(STEPS)]


class Told(ExtensionMessage, frozen=True, tag="test/told"):
    """A rank has finished a step."""

    step: int


class Answered(ExtensionMessage, frozen=True, tag="test/answered"):
    """The master has heard of a step."""

    step: int


class Asker(Extension):
    def in_rank(self, rank: Rank) -> RankExtension | None:
        return Asking(rank)


class Asking(RankExtension):
    """Ends once the master has answered."""

    messages = (Answered,)

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.heard_of: list[int] = []

    def step_done(self, step: int, held: bool) -> None:
        self.rank.tell_master(Told(step))
        self.rank.tell_master(Told(step))  # says nothing new

    def heard(self, message: ExtensionMessage) -> None:
        assert isinstance(message, Answered)
        self.heard_of.append(message.step)

    def steps_end(self, finished: int) -> None:
        self.rank.waits.until(lambda: finished in self.heard_of, IDLE)
        self.rank.workload.seen += self.heard_of  # type: ignore[attr-defined]


def test_a_rank_and_the_master_send_each_other_messages(fleet: Any, flow: Any, role: Any) -> None:
    graph, _ = flow
    made = graph(("a", "make", None), edges=[])
    a = lambda: role(make=lambda self: None)  # noqa: E731
    heard: list[m.RankToAgent] = []

    def drive(agent: Any) -> None:
        while len([each for each in heard if isinstance(each, m.RankSays)]) < STEPS:
            heard.append(m.decode_rank_to_agent(agent.reports.recv()))
        messages = m.MasterSays((Answered(STEPS - 1).sealed(),))
        for _ in range(2):  # repeated, and heard once
            agent.sockets["a", 0].send_multipart(encode_control(m.encode(messages)))

    outcome = fleet.run(made, {"a": (a, 1)}, steps=STEPS, extensions=(Asker,), drive=drive)["a", 0]
    assert not outcome.failure
    assert outcome.seen == [STEPS - 1]
    said = [each.message.opened(Told).step for each in heard if isinstance(each, m.RankSays)]
    assert said == list(range(STEPS))


def test_a_message_with_a_field_of_another_type_is_refused_where_it_is_sent() -> None:
    with pytest.raises(ValidationError, match="Expected `int`, got `str`"):
        Told("two").sealed()  # type: ignore[arg-type]


@pytest.mark.parametrize("removed", IN_RANK, ids=lambda each: each.__name__)
def test_a_rank_without_one_of_the_shipped_extensions_runs_its_steps(
    fleet: Any, flow: Any, role: Any, removed: type[Extension]
) -> None:
    graph, edge = flow
    made = graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1)])
    a = lambda: role(make=lambda self: [self.ctx.step])  # noqa: E731
    b = lambda: role(take=lambda self, x: self.seen.append(x))  # noqa: E731
    left = [each for each in SHIPPED if each is not removed]
    found = fleet.run(made, {"a": (a, 1), "b": (b, 1)}, steps=STEPS, shipped=left)
    assert not any(outcome.failure for outcome in found.values())
    assert found["b", 0].seen == [[step] for step in range(STEPS)]
