"""A conversation with a scripted model, and a running gateway before it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rolemesh import RankContext
from rolemesh_agents import EndReached, Message, Observation, Outcome, Reward, Start, Tool, ToolCall, Turn
from rolemesh_gateway import ProcessHarness, guard
from rolemesh_gateway.dialogue import Dialogue
from rolemesh_gateway.server import Door, Server

ADD = Tool("add", "Adds two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(Path(__file__).parent))
QUESTION = Start([{"role": "user", "content": "1 + 2 + 4?"}])
Model = Callable[[Sequence[Message]], Turn]


def turn(content: str, *calls: ToolCall, finish: str = "stop", **about: Any) -> Turn:
    """A turn whose tokens are the bytes of its text."""
    text = content + "".join(json.dumps({"name": call.name, "arguments": call.arguments}) for call in calls)
    return Turn(content, calls, (), list(content.encode()), finish, 7, text, **about)


class ScriptedTalk:
    """A `Conversation` whose model is a function of the messages. It notes what the harness asks for."""

    def __init__(self, model: Model, start: Start | None = None, turns: int = 1000) -> None:
        self.number, self.seed = 0, 17
        self.start = start or Start([{"role": "user", "content": "begin"}])
        self.samples: list[list[Message]] = [list(self.start.messages)]
        self.tools: list[Sequence[Tool]] = [self.start.tools]
        self.params: list[Mapping[str, Any]] = []
        self.calls: list[ToolCall] = []
        self.replies: list[str] = []
        self.reward: Reward | None = None
        self.truncated: str | None = None
        self.asked = 0
        """Number of turns that have begun."""
        self.hang: asyncio.Event | None = None
        """An event that a turn waits for, if there is one."""
        self._model, self._turns, self._now = model, turns, 0

    async def sample(self, params: Mapping[str, Any] = {}) -> Turn:
        if len(self.params) >= self._turns:
            raise EndReached("truncated")
        self.asked += 1
        if self.hang is not None:
            await self.hang.wait()
        found = self._model(self.samples[self._now])
        for stop in params.get("stop", ()):
            content, mark, _ = found.content.partition(stop)
            found = msgspec.structs.replace(found, content=content, text=content, stop=mark or found.stop)
        self.params.append(params)
        self.samples[self._now].append({"role": "assistant", "content": found.content})
        return found

    async def call(self, call: ToolCall) -> Observation:
        self.calls.append(call)
        if self.hang is not None:
            await self.hang.wait()
        return Observation(f"{call.name} done")

    async def reply(self, content: str) -> Outcome:
        self.replies.append(content)
        return Outcome()

    def append(self, messages: Sequence[Message]) -> None:
        self.samples[self._now] += messages

    def withdraw(self) -> None:
        sample = self.samples[self._now]
        while sample[-1]["role"] != "assistant":
            sample.pop()

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, name: str = "") -> int:
        self.samples.append(list(messages))
        self.tools.append(self.start.tools if tools is None else tools)
        self._now = len(self.samples) - 1
        return self._now

    def resume(self, sample: int) -> None:
        self._now = sample

    def count(self, messages: Sequence[Message], tools: Any = None, sample: int | None = None) -> int:
        before = [] if sample is None else self.samples[sample]
        return sum(len(each["content"]) for each in [*before, *messages])

    def judge(self, reward: Reward) -> None:
        self.reward = reward

    def finish(self, truncated: str = "") -> None:
        self.truncated = truncated
        raise EndReached(truncated or "finished")


class Running:
    """A gateway with one conversation."""

    def __init__(self, talk: ScriptedTalk, server: Server, door: Door, dialogue: Dialogue) -> None:
        self.talk, self.server, self.door, self.dialogue = talk, server, door, dialogue


@asynccontextmanager
async def running(
    model: Model,
    may_judge: bool = True,
    retry_s: float = 10.0,
    leave_out: Sequence[str] = (),
    takes: Sequence[str] = ("max_tokens", "stop"),
    **about: Any,
) -> AsyncIterator[Running]:
    server = Server("policy", 1.0, 4, retry_s, leave_out)
    await server.start()
    talk = ScriptedTalk(model, **about)
    door = server.open(talk.start)
    dialogue = Dialogue(talk, door.desk, takes, may_judge)
    task = asyncio.ensure_future(dialogue.run(lambda: None))
    try:
        yield Running(talk, server, door, dialogue)
    finally:
        task.cancel()
        server.close(door)
        await server.stop()


@pytest.fixture(scope="session")
def gateway() -> Any:
    """`gateway(model)`: an asynchronous context with a `Running`."""
    return running


HASTY = """
import os, runpy, time
monotonic = time.monotonic
time.monotonic = lambda: monotonic() + 3600 * os.path.exists({late!r})
runpy.run_path({guard!r}, run_name="__main__")
"""


@pytest.fixture
def late(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a program makes: then the clock of its guard is an hour ahead, and its seconds are over."""
    folder = tmp_path_factory.mktemp("late")
    found = folder / "late"
    (folder / "guard.py").write_text(HASTY.format(late=str(found), guard=guard.__file__))
    monkeypatch.setattr(guard, "__file__", str(folder / "guard.py"))
    return found


@pytest.fixture(scope="session")
def scripted() -> type[ScriptedTalk]:
    """The class `ScriptedTalk`."""
    return ScriptedTalk


@pytest.fixture(scope="session")
def says() -> Callable[..., Turn]:
    """`says(text, *calls)`: a turn of the model."""
    return turn


@pytest.fixture(scope="session")
def add() -> Tool:
    """A tool."""
    return ADD


@pytest.fixture
def held(scripted, tmp_path):
    """`held(model, **options)`: hold one conversation, and return it."""

    def hold(model, start=QUESTION, plugins=None, **options):
        async def main():
            talk = scripted(model, start)
            harness = ProcessHarness(ProcessHarness.Options.model_validate(options))
            ctx = RankContext(base=PROGRAMS, tmp_dir=tmp_path, plugins=plugins or {})
            try:
                harness.check_machine(ctx)
                await harness.setup(ctx)
                with pytest.raises(EndReached):
                    await harness.run(talk)
            finally:
                await harness.close()
                assert not list(tmp_path.iterdir())
            return talk

        return asyncio.run(main())

    return hold


@pytest.fixture
def adder(says):
    """A model that adds step by step with a tool, and then says the sum."""

    def model(messages):
        answers = [each["content"] for each in messages if each["role"] == "tool"]
        steps = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        if len(answers) < len(steps):
            return says("", ToolCall("add", steps[len(answers)], f"call{len(answers)}"))
        return says(f"The sum is {answers[-1]}.")

    return model
