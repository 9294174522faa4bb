"""The reward role: reasoning-gym's verifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Split
from rolemesh.api.workload import RankContext, operator
from rolemesh_reasoning_gym.tasks import ENV, check_task, extracted
from rolemesh_reasoning_gym.verifiers import Answer, Unjudged, Verifiers
from rolemesh_rewards.grouped import GroupedOptions, GroupedReward

__all__ = ["ReasoningGymReward", "RewardOptions"]

_SHOWN = 5  # answers per evaluation that are attached to the metrics
_REASONS = 5
"""Maximum number of reasons of failed judgements for which the role warns."""


class RewardOptions(GroupedOptions):
    """Options of the `reasoning-gym-reward` workload."""

    task: str | None = Field(None, description="name of a reasoning-gym dataset; by default each row's own task")
    config: dict[str, Any] = Field(default_factory=dict, description="the task's settings, if its verifier reads them")
    exact: bool = Field(False, description="true: 1 for a fully right answer, else 0; false: the verifier's score")
    strip: bool = Field(True, description="remove white space around the answer before it is verified")
    extract: str | None = Field(
        None, description="verify only the text in the last <extract>…</extract>, e.g. `answer`; 0 without it"
    )

    @model_validator(mode="after")
    def _config_belongs_to_a_task(self) -> RewardOptions:
        if self.config and self.task is None:
            raise ValueError("config is given without the task that it belongs to; add `task`")
        return self


class ReasoningGymReward(GroupedReward):
    """Scores completions with the task's verifier. It is stateless and works with any world size."""

    Options = RewardOptions
    options: RewardOptions
    deterministic = True
    preload: ClassVar[Sequence[str]] = ("reasoning_gym",)
    env: ClassVar[Mapping[str, str]] = ENV

    @classmethod
    def check(cls, options: RewardOptions, world_size: int) -> None:
        """Check that the task, if one is named, exists and accepts the config."""
        if options.task is not None:
            check_task(options.task, options.config)

    def setup(self, ctx: RankContext) -> None:
        import reasoning_gym  # noqa: F401  (two seconds, better now than in the first step)

        self.ctx = ctx
        self.verifiers = Verifiers([self.options.config], self.options.task)
        self.verifiers.start()
        self.told: set[Unjudged] = set()

    def teardown(self) -> None:
        """See `Workload.teardown`. End the workers."""
        self.verifiers.close()

    @operator(samples=Split(), returns=Split())
    def score(self, samples: Batch) -> Batch:
        """Add `reward` (float32, shape (rows,)) to each row. Needs `text` and `entry`.

        Workers judge the answers, in at most 5 s and 1 GB each, and without any right but to compute. An answer that
        its verifier cannot judge so is wrong: 0. If it cannot judge the right answer either, the reward is NaN, and
        `advantages` leaves the row out. `answers_unjudged` counts both.
        """
        rewards = self._scores(samples)
        if self.options.exact:
            rewards = np.where(np.isnan(rewards), rewards, rewards >= 1)
        for reward in rewards[~np.isnan(rewards)]:
            self.ctx.metric(reward=reward)
        return samples | {"reward": rewards.astype(np.float32)}

    @operator(samples=Split())
    def evaluate(self, samples: Batch) -> None:
        """Report `eval_accuracy`, the share of fully right answers, and the first few answers as `eval_answers`."""
        scores, shown = self._scores(samples), []
        for score, text, entry in zip(scores, samples["text"], samples["entry"], strict=True):
            correct = bool(score >= 1)
            if not np.isnan(score):
                self.ctx.metric(eval_accuracy=correct)
            shown.append({"question": entry["question"], "answer": entry["answer"], "text": text, "correct": correct})
        if self.ctx.rank == 0:
            self.ctx.record(eval_answers=shown[:_SHOWN])

    def _scores(self, samples: Batch) -> NDArray[np.float64]:
        options, answers = self.options, {}
        for row, (text, entry) in enumerate(zip(samples["text"], samples["entry"], strict=True)):
            if (found := extracted(text, options.extract)) is not None:
                task = options.task or entry["metadata"]["source_dataset"]
                answers[row] = Answer(task, 0, entry, found.strip() if options.strip else found)
        scores = np.zeros(samples.rows)
        if answers:
            scores[list(answers)] = self.verifiers.scores(list(answers.values()), self._tell)
        return scores

    def _tell(self, unjudged: Unjudged) -> None:
        self.ctx.count(answers_unjudged=1)
        if unjudged not in self.told and len(self.told) < _REASONS:
            self.told.add(unjudged)
            how = "counts as wrong" if unjudged.wrong else "has no reward, since that of the right answer fails, too"
            self.ctx.warn(f"an answer {how}: its judgement has failed ({unjudged.reason})")
