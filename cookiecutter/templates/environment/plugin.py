"""The environment: a model finds a number. It asks with a tool, and answers in plain text."""

import json
from typing import Literal

from pydantic import BaseModel, Field
from rolemesh_agents import Environment, Episode, Outcome, Reward, Start, Task, ToolEpisode, tool

__all__ = ["{{ cookiecutter.__class }}"]


class Guess(ToolEpisode):
    """One attempt at one number. It is restored from a snapshot."""

    def reset(self, task: Task, seed: int) -> Start:
        """Tell the model the question, and the tools."""
        self.number, self.questions, self.given = int(task.data["number"]), 0, ""
        question = f"Find my number, from 0 to {task.data['most']}, with few questions. Then answer the number alone."
        return Start([{"role": "user", "content": question}], self.tools())

    @tool
    def is_larger_than(self, limit: int) -> str:
        """Say whether the number is larger than `limit`."""
        self.questions += 1
        return "yes" if self.number > limit else "no"

    def reply(self, content: str) -> Outcome:
        """Take the answer, which ends the episode."""
        self.given = content.strip()
        return Outcome()

    def reward(self) -> Reward:
        """1 for the right number, less 0.05 per question, but at least 0.1."""
        right = self.given == str(self.number)
        value = max(0.1, 1.0 - 0.05 * self.questions) if right else 0.0
        return Reward(value, {"questions": self.questions}, success=right)

    def snapshot(self) -> bytes:
        """The whole state."""
        return json.dumps([self.number, self.questions, self.given]).encode()

    def restore(self, state: bytes) -> None:
        """Continue from a snapshot."""
        self.number, self.questions, self.given = json.loads(state)


class {{ cookiecutter.__class }}(Environment):
    """A task for each number up to `most`. Some of them are held out."""

    class Options(BaseModel, extra="forbid"):
        """Options in the job file."""

        most: int = Field(default=99, ge=10, description="Largest number.")
        held_out: int = Field(default=10, ge=1, description="Every `held_out`-th number is held out.")

    options: Options

    def size(self, split: Literal["train", "eval"]) -> int:
        """How many tasks there are."""
        return len(self.numbers(split))

    def task(self, split: Literal["train", "eval"], number: int, seed: int) -> dict[str, int]:
        """The data of a task: a JSON value."""
        return {"number": self.numbers(split)[number], "most": self.options.most}

    def episode(self) -> Episode:
        """A new episode."""
        return Guess()

    def numbers(self, split: Literal["train", "eval"]) -> list[int]:
        """The numbers of a split."""
        held = self.options.held_out
        return [n for n in range(self.options.most + 1) if (n % held == 0) == (split == "eval")]
