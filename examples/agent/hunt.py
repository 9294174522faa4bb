"""The environment and the harness of the example: a hunt for a key, from clue to clue.

Each place has a clue: the next place, or the place of the key. The model looks at places with the tool `look`, and then
answers. A hunt of n clues takes n + 1 turns. The answer cannot be guessed: it is in the last clue only.

The chat template of SmolLM2 has no tools, and a model of this size writes ``look(river)`` better than JSON. So a
harness of the example's own reads the calls. A model with tools in its template needs no harness: leave out the agent's
key `harness`, and return the tools in `Start`.
"""

from __future__ import annotations

import random
import re
from typing import Any

from pydantic import BaseModel, Field

from rolemesh.api.workload import stable_seed
from rolemesh_agents import (
    Conversation,
    Environment,
    Harness,
    Outcome,
    Reward,
    Start,
    Task,
    ToolCall,
    ToolEpisode,
    tool,
)

PLACES = [
    "river", "stone", "lamp", "garden", "tower", "bridge", "forest", "market", "castle", "island", "harbor", "mill",
    "cave", "library", "temple", "bakery", "meadow", "station", "theater", "museum", "school", "church", "valley",
    "beach", "hotel", "square", "palace", "farm", "kitchen", "attic",
]  # fmt: skip
SYSTEM = (
    "Search for the key. Write look(place) to look at a place. When a clue names the place of the key, answer with it."
)
HELD_OUT = 4
"""Every fourth hunt, about, is for evaluation."""


class HuntOptions(BaseModel, extra="forbid"):
    """Options of the environment `Hunt`."""

    clues: int = Field(4, ge=1, le=10, description="clues of the longest hunt; the shortest has one")
    demonstrations: int = Field(2, ge=0, description="solved hunts before each hunt, always the same")


class Hunt(Environment):
    """Hunts for a key. There is a hunt for every number."""

    Options = HuntOptions
    options: HuntOptions

    def size(self, split: str) -> int | None:
        """See `Environment.size`."""
        return None

    def task(self, split: Any, number: int, seed: int) -> list[str]:
        """Draw a path of places. Its first two places decide the split, so no hunt is in both splits."""
        rng = random.Random(stable_seed(seed, split, number))
        while True:
            path = rng.sample(PLACES, rng.randint(1, self.options.clues) + 1)
            if (stable_seed(0, *path[:2]) % HELD_OUT == 0) == (split == "eval"):
                return path

    def episode(self) -> HuntEpisode:
        """See `Environment.episode`."""
        return HuntEpisode(self.options)


class HuntEpisode(ToolEpisode):
    """One hunt."""

    def __init__(self, options: HuntOptions) -> None:
        self.options = options

    def reset(self, task: Task, seed: int) -> Start:
        """Show solved hunts, and then ask."""
        self.path: list[str] = task.data
        self.answer = ""
        shown: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        for number in range(self.options.demonstrations):
            path = random.Random(number).sample(PLACES, number % 3 + 2)
            shown += _solved(path)
        return Start([*shown, _question(self.path)])

    @tool
    def look(self, place: str) -> str:
        """Look at a place."""
        return _clue(self.path, place.lower())

    def reply(self, content: str) -> Outcome:
        """Take the answer."""
        self.answer = content
        return Outcome(done=True)

    def reward(self) -> Reward:
        """1 if the answer is the place of the key."""
        found = re.fullmatch(rf"\W*answer:? (the )?{self.path[-1]}\W*", self.answer, re.IGNORECASE)
        return Reward(float(found is not None), success=found is not None)


class LookLoop(Harness):
    """Runs ``look(place)`` in a turn of the model, and gives every other turn to the environment as the answer."""

    async def run(self, talk: Conversation) -> None:
        """See `Harness.run`."""
        while True:
            turn = await talk.sample()
            found = re.fullmatch(r"look\((?:the )?(\w+)\)", turn.content.strip())
            if found is None:
                await talk.reply(turn.content)
            else:
                answer = await talk.call(ToolCall("look", {"place": found[1]}))
                talk.append([{"role": "user", "content": answer.content}])


def _question(path: list[str]) -> dict[str, Any]:
    return {"role": "user", "content": f"Where is the key? Begin at the {path[0]}."}


def _clue(path: list[str], place: str) -> str:
    if place not in path[:-1]:
        return "There is nothing."
    at = path.index(place) + 1
    return f"The key is in the {path[at]}." if at == len(path) - 1 else f"Go to the {path[at]}."


def _solved(path: list[str]) -> list[dict[str, Any]]:
    shown = [_question(path)]
    for place in path[:-1]:
        shown.append({"role": "assistant", "content": f"look({place})"})
        shown.append({"role": "user", "content": _clue(path, place)})
    return [*shown, {"role": "assistant", "content": f"answer: {path[-1]}"}]
