"""Environments that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from rolemesh_agents import Environment, Episode, Observation, Reward, Start, Task, ToolCall, ToolEpisode, tool

__all__ = ["BROKEN", "Mail", "Sound"]


class Adding(ToolEpisode):
    """A model adds numbers until it has the task's sum."""

    def reset(self, task: Task, seed: int) -> Start:
        self.wanted, self.sum, self.actions = int(task.data["sum"]), seed, 0
        return Start([{"role": "user", "content": f"Get from {seed} to {self.wanted}."}], self.tools())

    @tool
    def add(self, number: int) -> str:
        """Add a number to the sum."""
        self.sum += number
        return f"the sum is {self.sum}"

    def reward(self) -> Reward:
        return Reward(1.0 / (1 + abs(self.wanted - self.sum)), {"sum": self.sum}, success=self.wanted == self.sum)


class Sound(Environment):
    """Has a task for each sum."""

    episodes: type[Adding] = Adding

    def size(self, split: Any) -> int | None:
        return None if split == "train" else 5

    def task(self, split: Any, number: int, seed: int) -> Any:
        return {"sum": 2 * number + 1001 + (split == "eval")}

    def episode(self) -> Episode:
        return self.episodes()


def of(change: type[Any], name: str) -> type[Environment]:
    """An environment whose episodes have the methods of `change`."""
    episodes = type(f"{name}Episode", (change, Adding), {"__module__": __name__})
    cls = type(name, (Sound,), {"__module__": __name__, "__doc__": change.__doc__, "episodes": episodes})
    globals()[name] = cls
    return cls


class Empty(Sound):
    """Has no task to train on."""

    def size(self, split: Any) -> int | None:
        return 0 if split == "train" else 5


class Random(Sound):
    """Draws its tasks."""

    def task(self, split: Any, number: int, seed: int) -> Any:
        return {"sum": 2 * random.randrange(1 << 40) + (split == "eval")}


class Overlapping(Sound):
    """Holds out what it trains on."""

    def task(self, split: Any, number: int, seed: int) -> Any:
        return {"sum": number}


class _Nameless:
    """Says something without saying who."""

    def reset(self, task: Task, seed: int) -> Start:
        start = super().reset(task, seed)  # type: ignore[misc]
        return Start([{"content": start.messages[0]["content"]}], start.tools)


class _Timed:
    """Answers with the time."""

    def call(self, call: ToolCall) -> Observation:
        return Observation(f"{time.time_ns()}: {super().call(call).content}")  # type: ignore[misc]


class _Forgetful:
    """Keeps the sum in its snapshot, and forgets the wanted one."""

    def snapshot(self) -> bytes:
        return json.dumps([self.sum]).encode()  # type: ignore[attr-defined]

    def restore(self, state: bytes) -> None:
        self.sum, self.wanted = json.loads(state)[0], 0


class _Consuming:
    """Its snapshot takes the sum away."""

    def snapshot(self) -> bytes:
        state = json.dumps([self.sum, self.wanted]).encode()  # type: ignore[has-type]
        self.sum = 0
        return state

    def restore(self, state: bytes) -> None:
        self.sum, self.wanted = json.loads(state)


class _Once:
    """Its snapshot is a file that restoring removes, and an empty episode after that."""

    def snapshot(self) -> bytes:
        with tempfile.NamedTemporaryFile("w", prefix="once-", dir=Path.home(), delete=False) as file:
            json.dump([self.sum, self.wanted], file)  # type: ignore[has-type]
        return file.name.encode()

    def restore(self, state: bytes) -> None:
        file = Path(state.decode())
        self.sum, self.wanted = json.loads(file.read_text()) if file.exists() else (0, 0)
        file.unlink(missing_ok=True)


class _Unfinished:
    """Has no reward before the model has taken an action."""

    def reset(self, task: Task, seed: int) -> Start:
        self.actions = 0
        return super().reset(task, seed)  # type: ignore[misc,no-any-return]

    def call(self, call: ToolCall) -> Observation:
        self.actions += 1
        return super().call(call)  # type: ignore[misc,no-any-return]

    def reply(self, content: str) -> Any:
        self.actions += 1
        return super().reply(content)  # type: ignore[misc]

    def reward(self) -> Reward:
        return Reward(super().reward().value if self.actions else float("nan"))  # type: ignore[misc]


class _Shared:
    """All its episodes have one sum."""

    sums: dict[str, int] = {}

    def reset(self, task: Task, seed: int) -> Start:
        self.sums["sum"] = seed
        return super().reset(task, seed)  # type: ignore[misc,no-any-return]

    def call(self, call: ToolCall) -> Observation:
        self.sums["sum"] += int(str(call.arguments.get("number", 0)) or 0) if call.name == "add" else 0
        super().call(call)  # type: ignore[misc]
        return Observation(str(self.sums["sum"]))


class _Caching:
    """Judges an answer once, whatever its task is."""

    rewards: dict[str, Reward] = {}
    said = ""

    def reply(self, content: str) -> Any:
        self.said = content
        return super().reply(content)  # type: ignore[misc]

    def reward(self) -> Reward:
        return self.rewards.setdefault(self.said, super().reward())  # type: ignore[misc]


class _Strict:
    """Raises what the model does wrong."""

    def call(self, call: ToolCall) -> Observation:
        if call.name != "add":
            raise KeyError(call.name)
        return super().call(call)  # type: ignore[misc,no-any-return]


class _Hasty:
    """Cannot be closed before its begin."""

    def close(self) -> None:
        self.sum = self.wanted + 0  # type: ignore[has-type]


class _Piling:
    """Leaves a thread behind in each episode."""

    def reset(self, task: Task, seed: int) -> Start:
        threading.Thread(target=time.sleep, args=(60,), daemon=True, name="piled").start()
        return super().reset(task, seed)  # type: ignore[misc,no-any-return]


class _Littering:
    """Leaves a file behind."""

    def reset(self, task: Task, seed: int) -> Start:
        tempfile.mkstemp()
        return super().reset(task, seed)  # type: ignore[misc,no-any-return]


class _Outliving:
    """Starts a program, and ends it when it is closed only."""

    def reset(self, task: Task, seed: int) -> Start:
        self.program = subprocess.Popen(["sleep", "60"])
        return super().reset(task, seed)  # type: ignore[misc,no-any-return]

    def close(self) -> None:
        if program := getattr(self, "program", None):
            program.kill()
            program.wait()


class Mailing(Adding):
    """Sends letters, which cannot be taken back."""

    def reset(self, task: Task, seed: int) -> Start:
        self.box = Path(task.data["box"])
        return super().reset(task, seed)

    @tool(repeatable=False)
    def send(self, text: str) -> str:
        """Send a letter."""
        with self.box.open("a") as box:
            box.write(f"{json.dumps(text)}\n")
        return "sent"

    def snapshot(self) -> bytes:
        return json.dumps([self.sum, self.wanted, str(self.box)]).encode()

    def restore(self, state: bytes) -> None:
        self.sum, self.wanted, box = json.loads(state)
        self.box = Path(box)


class MailOptions(BaseModel, extra="forbid"):
    """Options with a letter box."""

    box: str = Field("box", description="A file, relative to the job file.", validate_default=True)

    @field_validator("box")
    @classmethod
    def _in_the_jobs_folder(cls, box: str, info: ValidationInfo) -> str:
        return str(Path((info.context or {}).get("base", "."), box))


class Mail(Sound):
    """Gives each task a letter box, which is a file in the job's folder."""

    Options = MailOptions
    episodes = Mailing

    def task(self, split: Any, number: int, seed: int) -> Any:
        return {"sum": 2 * number + 1001 + (split == "eval"), "box": self.options.box}


class _Again(Mailing):
    def restore(self, state: bytes) -> None:
        super().restore(state)
        if self.box.exists():
            self.send(self.box.read_text())


class MailAgain(Mail):
    """Sends the letters again in a restored episode."""

    episodes = _Again


SAME, SNAPSHOT = "test_the_same_actions_have_the_same_answers", "test_a_snapshot_changes_nothing"
KILLED = "test_a_killed_episode_continues_as_if_undisturbed"
TWICE = "test_a_snapshot_can_be_restored_twice"
CLOSED = "test_nothing_is_left_after_close"

BROKEN: dict[type[Environment], set[str]] = {
    Empty: {"test_it_has_tasks"},
    Random: {"test_its_tasks_are_the_same_in_every_process"},
    Overlapping: {"test_no_task_is_in_both_splits"},
    of(_Nameless, "Nameless"): {"test_its_begin_can_be_shown_to_a_model"},
    of(_Timed, "Timed"): {SAME, KILLED},
    of(_Forgetful, "Forgetful"): {KILLED, TWICE},
    of(_Consuming, "Consuming"): {SNAPSHOT},
    of(_Once, "Once"): {TWICE},
    of(_Unfinished, "Unfinished"): {"test_its_reward_is_finite_wherever_the_episode_ends"},
    of(_Shared, "Shared"): {"test_episodes_at_the_same_time_are_independent"},
    of(_Caching, "Caching"): {SAME},
    of(_Strict, "Strict"): {"test_mistakes_of_the_model_are_answers"},
    of(_Hasty, "Hasty"): {"test_an_episode_closes_at_any_time"},
    of(_Piling, "Piling"): {CLOSED},
    of(_Littering, "Littering"): {CLOSED},
    of(_Outliving, "Outliving"): {"test_no_process_survives_a_kill"},
}
