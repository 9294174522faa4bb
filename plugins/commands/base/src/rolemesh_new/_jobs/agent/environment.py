"""Questions with a second attempt: the model hears that an answer is wrong, and answers again."""

import json
from pathlib import Path
from typing import Any

from rolemesh_agents import Environment, Episode, Outcome, Reward, Start, Task

DATA = Path(__file__).parent / "$data"


class Questions(Environment):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.rows = [json.loads(line) for line in DATA.read_bytes().splitlines() if line.strip()]

    def size(self, split: str) -> int:
        return len(self.rows) if split == "train" else 0

    def task(self, split: str, number: int, seed: int) -> Any:
        return self.rows[number]

    def episode(self) -> Episode:
        return Attempts()


class Attempts(Episode):
    def reset(self, task: Task, seed: int) -> Start:
        self.answer, self.attempts, self.solved = words(task.data["answer"]), 0, False
        return Start([{"role": "user", "content": task.data["question"]}])

    def reply(self, content: str) -> Outcome:
        self.attempts += 1
        self.solved = words(content)[-len(self.answer) :] == self.answer
        if self.solved or self.attempts == 2:
            return Outcome(done=True)
        return Outcome([{"role": "user", "content": "That is wrong. Try again."}], done=False)

    def reward(self) -> Reward:
        return Reward(float(self.solved) / max(1, self.attempts), success=self.solved)


def words(text: Any) -> list[str]:
    return str(text).lower().strip(" \n.!*").split()
