"""The reward role: reasoning-gym's verifiers, and GRPO's advantages within groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, Field, model_validator

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Broadcast, Split
from rolemesh.api.workload import RankContext, Workload, operator
from rolemesh.errors import RolemeshError
from rolemesh_reasoning_gym.tasks import ENV, check_task, extracted
from rolemesh_reasoning_gym.verifiers import Answer, Unjudged, Verifiers

__all__ = ["ReasoningGymReward", "RewardOptions", "group_advantages"]

_SHOWN = 5  # answers per evaluation that are attached to the metrics
_REASONS = 5
"""Maximum number of reasons of failed judgements for which the role warns."""


class RewardOptions(BaseModel, extra="forbid"):
    """Options of the `reasoning-gym-reward` workload."""

    task: str | None = Field(None, description="name of a reasoning-gym dataset; by default each row's own task")
    config: dict[str, Any] = Field(default_factory=dict, description="the task's settings, if its verifier reads them")
    exact: bool = Field(False, description="true: 1 for a fully right answer, else 0; false: the verifier's score")
    strip: bool = Field(True, description="remove white space around the answer before it is verified")
    extract: str | None = Field(
        None, description="verify only the text in the last <extract>…</extract>, e.g. `answer`; 0 without it"
    )
    scale_rewards: Literal["group", "none"] = Field(
        "group",
        description="group: `advantages` divides by the standard deviation of a group's rewards (GRPO); none: it only "
        "subtracts the group's mean (Dr. GRPO)",
    )

    @model_validator(mode="after")
    def _config_belongs_to_a_task(self) -> RewardOptions:
        if self.config and self.task is None:
            raise ValueError("config is given without the task that it belongs to; add `task`")
        return self


class ReasoningGymReward(Workload):
    """Scores completions with the task's verifier. It is stateless and works with any world size."""

    Options = RewardOptions
    deterministic = True
    preload: ClassVar[Sequence[str]] = ("reasoning_gym",)
    env: ClassVar[Mapping[str, str]] = ENV

    @classmethod
    def check(cls, options: RewardOptions, world_size: int) -> None:
        """Check that the task, if one is named, exists and accepts the config."""
        if options.task is not None:
            check_task(options.task, options.config)

    def setup(self, ctx: RankContext[RewardOptions]) -> None:
        import reasoning_gym  # noqa: F401  (two seconds, better now than in the first step)

        self.ctx = ctx
        self.verifiers = Verifiers([ctx.options.config], ctx.options.task)
        self.verifiers.start()
        self.told: set[Unjudged] = set()
        self.warned = False

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
        if self.ctx.options.exact:
            rewards = np.where(np.isnan(rewards), rewards, rewards >= 1)
        for reward in rewards[~np.isnan(rewards)]:
            self.ctx.metric(reward=reward)
        return samples | {"reward": rewards.astype(np.float32)}

    @operator(samples=Broadcast(), returns=Broadcast())
    def advantages(self, samples: Batch) -> Batch:
        """Add `advantage` (float32, shape (rows,)): `reward` standardised within its `group`, or only centered.

        Shao et al., "DeepSeekMath", arXiv:2402.03300, section 4.1.2; with ``scale_rewards: none`` Liu et al.,
        arXiv:2503.20783, equation 3. In groups whose rewards are all equal the advantage is 0; the metric
        `informative_groups` is the share of the other groups. A row whose reward is None, NaN or infinite gets 0 and
        does not count in its group; `rewards_left_out` counts such rows. Raises `RolemeshError` for a group with
        samples of different questions.
        """
        _refuse_mixed_groups(samples)
        rewards = np.asarray(samples["reward"], dtype=np.float64)
        bad = np.flatnonzero(~np.isfinite(rewards))
        if len(bad):
            self.ctx.count(rewards_left_out=len(bad) / self.ctx.world_size)
            if not self.warned and self.ctx.rank == 0:
                group = samples["group"][bad[0]]
                self.ctx.warn(f"row {bad[0]} of group {group} is left out: its reward is {rewards[bad[0]]}")
            self.warned = True
        advantages, informative = group_advantages(
            rewards, samples["group"], scaled=self.ctx.options.scale_rewards == "group"
        )
        if samples.rows:
            self.ctx.metric(informative_groups=informative)
        return samples | {"advantage": advantages}

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
        options, answers = self.ctx.options, {}
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


def group_advantages(
    reward: ArrayLike, group: NDArray[np.int64], *, scaled: bool = True
) -> tuple[NDArray[np.float32], float]:
    """Return (reward − mean) / standard deviation within each group as float32, and the share of groups with different
    rewards.

    Without `scaled` it is reward − mean. The deviation is that of the group's rewards themselves, not an estimate from
    a sample (TRL and verl use the estimate, which is larger by √(n / (n − 1)) for n samples). A reward that is None,
    NaN or infinite is left out: its own advantage is 0, and the others' are as without it.
    """
    _, member = np.unique(group, return_inverse=True)
    whole = np.asarray(reward, dtype=np.float64)
    good = np.isfinite(whole)
    if not good.all():
        advantages = np.zeros(len(whole), dtype=np.float32)
        advantages[good], informative = group_advantages(whole[good], np.asarray(group)[good], scaled=scaled)
        return advantages, informative * len(np.unique(member[good])) / max(1, len(np.unique(member)))
    values = whole
    size = np.maximum(np.bincount(member), 1)
    centered = values - (np.bincount(member, values) / size)[member]
    std = np.sqrt(np.bincount(member, centered**2) / size)
    differs = std > 1e-6
    scale = np.where(differs, 1 / np.where(differs, std, 1) if scaled else 1, 0)
    return (centered * scale[member]).astype(np.float32), float(differs.mean()) if differs.size else 0.0


def _refuse_mixed_groups(samples: Batch) -> None:
    """Raise `RolemeshError` for a group whose samples answer different questions, because two prompts had the same
    `index`."""
    column = next((samples[name] for name in ("question", "entry") if name in samples), None)
    first: dict[int, int] = {}
    for row, group in enumerate(np.asarray(samples["group"]).tolist() if column is not None else ()):
        other = first.setdefault(group, row)
        if other != row and not np.array_equal(column[other], column[row]):
            raise RolemeshError(
                f"group {group} has samples of different prompts, in rows {other} and {row}",
                remedy="give each prompt of a step an index of its own, on all ranks of the role that numbers them",
            )
