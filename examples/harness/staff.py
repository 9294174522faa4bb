"""The questions about the list of staff, and the judge of the answers. All of rolemesh that this example has."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rolemesh.api.workload import stable_seed
from rolemesh_agents import Environment, Episode, Reward, Start, Task

HELD_OUT = 3
"""Every third person, about, is for evaluation."""


class StaffOptions(BaseModel, extra="forbid"):
    """The environment `Staff` has no options."""


class Staff(Environment):
    """Each question names a person with a boss. The answer is the person at the top of that chain of bosses."""

    Options = StaffOptions

    def __init__(self, options: StaffOptions) -> None:
        super().__init__(options)
        with open(Path(__file__).with_name("staff.csv")) as file:
            self.bosses = {row["name"]: row["boss"] for row in csv.DictReader(file)}

    def people(self, split: str) -> list[str]:
        """Return the people of one split who have a boss."""
        mine = [name for name, boss in self.bosses.items() if boss]
        return [name for name in mine if (stable_seed(0, name) % HELD_OUT == 0) == (split == "eval")]

    def size(self, split: str) -> int | None:
        """See `Environment.size`."""
        return len(self.people(split))

    def task(self, split: Any, number: int, seed: int) -> dict[str, str]:
        """Ask for one person."""
        name = top = self.people(split)[number]
        while self.bosses[top]:
            top = self.bosses[top]
        return {"name": name, "top": top}

    def episode(self) -> Question:
        """See `Environment.episode`."""
        return Question()


class Question(Episode):
    """One question. The program `chain.py` has its own tool, so the episode has none."""

    answer = ""

    def reset(self, task: Task, seed: int) -> Start:
        """Ask."""
        self.top: str = task.data["top"]
        return Start([{"role": "user", "content": f"Who is at the top above {task.data['name']}?"}])

    def reply(self, content: str) -> Any:
        """Take the program's last turn of the model."""
        self.answer = content
        return super().reply(content)

    def reward(self) -> Reward:
        """1 if the answer is right."""
        right = re.fullmatch(rf"\W*answer:? {self.top}\W*", self.answer, re.IGNORECASE) is not None
        return Reward(float(right), success=right)
