"""The environment: a model has several attempts at a question, and learns which were wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, Field

from rolemesh.errors import OptionsError
from rolemesh_agents import AgentError, Environment, Episode, Outcome, Reward, Start, Task
from rolemesh_reasoning_gym.data import SEED_SPACING
from rolemesh_reasoning_gym.tasks import check_task, extracted, highest_level, leveled, make_dataset
from rolemesh_reasoning_gym.verifiers import Answer, Unjudged, Verifiers

__all__ = ["EnvironmentOptions", "ReasoningGymEnvironment"]

_PROBES = 1000  # the environment looks at 1,000 items for a new question; then it raises an error


class CurriculumOptions(BaseModel, extra="forbid"):
    """Levels of a curriculum of reasoning-gym, which training tasks take one after the other."""

    first: int = Field(0, ge=0, description="level of the first training tasks")
    last: int | None = Field(
        None, ge=0, description="level of the last training tasks, and of all held-out ones; null: the highest"
    )
    every: int = Field(1000, ge=1, description="number of training tasks of a level, before the next one begins")


class EnvironmentOptions(BaseModel, extra="forbid"):
    """Options of the environment `reasoning-gym`."""

    task: str = Field(description="name of a reasoning-gym dataset")
    config: dict[str, Any] = Field(default_factory=dict, description="its settings, except `seed` and `size`")
    curriculum: CurriculumOptions | None = Field(
        None, description="levels of reasoning-gym's curriculum, whose settings replace those of `config`; null: none"
    )
    attempts: int = Field(3, gt=0, description="answers that the model may give to a question")
    feedback: str = Field(
        "This is wrong. Think again, and answer the question.",
        min_length=1,
        description="answer to a wrong attempt; {score} is the verifier's score, {left} the number of attempts left",
    )
    system: str | None = Field(None, description="system prompt; by default none, so the chat template's own is used")
    extract: str | None = Field(
        None, description="verify only the text in the last <extract>…</extract>, e.g. `answer`; 0 without it"
    )
    strip: bool = Field(True, description="remove white space around the answer before it is verified")
    discount: float = Field(
        1.0, gt=0, le=1, description="factor of the reward for each attempt after the first; 1: attempts are free"
    )
    eval_size: int = Field(64, ge=0, description="held-out questions, which are never trained on")


class ReasoningGymEnvironment(Environment):
    """Asks questions of reasoning-gym. The reward is the verifier's score of the last answer.

    An item is made from its number. The first `eval_size` different questions are held out, and a task whose question
    is one of them has another item.
    """

    Options = EnvironmentOptions

    def __init__(self, options: EnvironmentOptions) -> None:
        super().__init__(options)
        check_task(options.task, options.config)
        self._levels = _levels(options)
        self._configs = [
            options.config if level is None else leveled(options.task, options.config, level) for level in self._levels
        ]
        """The task's settings for each of the levels."""
        for config in self._configs:
            make_dataset(options.task, config, seed=0, size=1)  # it may refuse the settings
        self._verifiers = Verifiers(self._configs, options.task)
        self._held: dict[int, dict[str, int]] = {}
        """The held-out questions and their items, by the job's seed."""

    def size(self, split: Literal["train", "eval"]) -> int | None:
        """See `Environment.size`: there is a training task for every number."""
        return self.options.eval_size if split == "eval" else None

    def task(self, split: Literal["train", "eval"], number: int, seed: int) -> dict[str, Any]:
        """See `Environment.task`. The data is the item's number, its question, and its place in the curriculum.

        The number of a training task alone decides its level.
        """
        held = self._held_out(seed)
        if split == "eval":
            question, item = list(held.items())[number]
            return self._data(item, question, len(self._levels) - 1)
        at = self._place(number)
        # Training begins behind the items that were looked at for the held-out questions.
        first = SEED_SPACING * (seed + 1) + _PROBES * self.options.eval_size + number
        for probe in range(_PROBES):
            item = first + (probe << 40)
            question = self.entry(item, at)["question"]
            if question not in held:
                return self._data(item, question, at)
        raise self._too_few(f"each of {_PROBES} items has a question that is held out")

    def episode(self) -> Episode:
        """See `Environment.episode`."""
        return Attempts(self)

    def entry(self, item: int, place: int = 0) -> dict[str, Any]:
        """Return reasoning-gym's own dict of an item, at this place in the curriculum."""
        return dict(make_dataset(self.options.task, self._configs[place], seed=item, size=1)[0])

    def score(
        self, entry: dict[str, Any], answer: str, place: int = 0, tell: Callable[[Unjudged], None] = lambda _: None
    ) -> float:
        """Return the verifier's score of an answer, from 0 to 1. Called by several threads.

        `tell` hears of an answer that cannot be judged, and scores 0. Raises `AgentError` if the right one cannot be
        judged either.
        """
        options = self.options
        text = extracted(answer, options.extract)
        if text is None:
            return 0.0
        unjudged: list[Unjudged] = []
        given = Answer(options.task, place, entry, text.strip() if options.strip else text)
        (score,) = self._verifiers.scores([given], unjudged.append)
        for each in unjudged:
            if not each.wrong:
                what = f"the verifier of {options.task} fails on the right answer, too ({each.reason})"
                raise AgentError(what, remedy="leave such tasks out with `config`")
            tell(each)
        return score

    def close(self) -> None:
        """See `Environment.close`. End the workers that judge."""
        self._verifiers.close()

    def _place(self, number: int) -> int:
        curriculum = self.options.curriculum
        return 0 if curriculum is None else min(number // curriculum.every, len(self._levels) - 1)

    def _data(self, item: int, question: str, place: int) -> dict[str, Any]:
        return {"item": item, "question": question, **({} if self._levels[place] is None else {"place": place})}

    def _held_out(self, seed: int) -> dict[str, int]:
        if seed not in self._held:
            found: dict[str, int] = {}
            item = last = SEED_SPACING * (seed + 1)
            while len(found) < self.options.eval_size:
                question = self.entry(item, len(self._levels) - 1)["question"]
                if question not in found:
                    found[question] = last = item
                item += 1
                if item - last > _PROBES:
                    raise self._too_few(f"only {len(found)} of {self.options.eval_size} held-out ones are found")
            self._held[seed] = found
        return self._held[seed]

    def _too_few(self, what: str) -> OptionsError:
        return OptionsError(
            f"the task {self.options.task!r} has too few different questions: {what}",
            where="eval_size",
            remedy="make the task's config harder, or eval_size smaller",
        )


def _levels(options: EnvironmentOptions) -> list[int | None]:
    """Return the levels of the curriculum in their order; without one, the only element is None."""
    if options.curriculum is None:
        return [None]
    highest = highest_level(options.task)
    first, last = options.curriculum.first, highest if options.curriculum.last is None else options.curriculum.last
    if not first <= last <= highest:
        what = f"the levels {first} to {last} are not levels of the task {options.task!r}"
        raise OptionsError(
            what, where="curriculum", remedy=f"its levels are 0 to {highest}, and `first` is at most `last`"
        )
    return list(range(first, last + 1))


class Attempts(Episode):
    """The attempts at one question. They are restored from a snapshot. Workers of the environment judge the answers."""

    own_process = False

    def __init__(self, environment: ReasoningGymEnvironment) -> None:
        self._environment = environment
        self._item = self._given = self._place = self._unjudged = 0
        self._score = 0.0
        self._entry: dict[str, Any] = {}

    def reset(self, task: Task, seed: int) -> Start:
        """See `Episode.reset`. Raises `AgentError` if this process makes another question of the item."""
        self._item, self._place = task.data["item"], task.data.get("place", 0)
        self._entry = self._environment.entry(self._item, self._place)
        question = self._entry["question"]
        if question != task.data["question"]:
            what = f"item {self._item} has another question here than in the role that dealt the task out"
            raise AgentError(what, remedy="use one version of reasoning-gym, and PYTHONHASHSEED=0, in all roles")
        system = self._environment.options.system
        head = [] if system is None else [{"role": "system", "content": system}]
        return Start([*head, {"role": "user", "content": question}])

    def reply(self, content: str) -> Outcome:
        """See `Episode.reply`: an attempt. A right answer, or the last one, ends the episode."""
        options = self._environment.options
        self._score = self._environment.score(self._entry, content, self._place, self._tell)
        self._given += 1
        left = options.attempts - self._given
        if self._score >= 1 or not left:
            return Outcome()
        feedback = options.feedback.replace("{score}", f"{self._score:g}").replace("{left}", str(left))
        return Outcome([{"role": "user", "content": feedback}], done=False)

    def reward(self) -> Reward:
        """See `Episode.reward`. Without an answer it is 0."""
        value = self._score * self._environment.options.discount ** max(0, self._given - 1)
        parts = {"score": self._score, "attempts": self._given, "unjudged": self._unjudged}
        return Reward(value, parts, success=self._score >= 1)

    def _tell(self, unjudged: Unjudged) -> None:
        self._unjudged += 1
        logging.getLogger(__name__).warning("an answer counts as wrong: its judgement failed (%s)", unjudged.reason)

    def snapshot(self) -> bytes:
        """See `Episode.snapshot`."""
        return json.dumps([self._item, self._given, self._score, self._place, self._unjudged]).encode()

    def restore(self, state: bytes) -> None:
        """See `Episode.restore`."""
        found = [*json.loads(state), 0, 0]  # earlier versions had no curriculum, and counted no failed judgements
        self._item, self._given, self._score, self._place, self._unjudged = found[:5]
        self._entry = self._environment.entry(self._item, self._place)
