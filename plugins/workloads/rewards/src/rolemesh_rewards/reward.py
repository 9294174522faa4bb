"""The workload `reward`: rewards by Python functions of the user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, field_validator

from rolemesh.api.batch import Batch
from rolemesh.api.import_ref import ImportRef
from rolemesh.api.partition import Split
from rolemesh.api.workload import RankContext, operator
from rolemesh.errors import OptionsError
from rolemesh_processes.judging import Failed, JudgeLimits
from rolemesh_rewards.functions import Answers, Rewarded, RewardFunction
from rolemesh_rewards.grouped import GroupedOptions, GroupedReward

__all__ = ["Reward", "RewardOptions"]

_SHOWN = 5
"""Number of answers of an evaluation that the metrics show."""
_REASONS = 5
"""Maximum number of reasons of failures for which the role warns."""
_OTHERS = {"prompt_ids", "logprobs", "messages", "prompt", "text", "row", "completion"}
"""Columns of rows that functions get in another form, or not."""
_SAMPLED = {"prompt", "completion", "completion_ids"}
"""Columns of the data that functions do not get, as in TRL: they would pass for what was sampled."""


class FunctionOptions(BaseModel, extra="forbid"):
    """One function, and its weight in the reward."""

    use: ImportRef = Field(description="the function: 'reward.py:correct' or 'package.module:name'")
    weight: float = Field(1.0, allow_inf_nan=False, description="factor of its rewards")
    name: str | None = Field(None, min_length=1, description="name in metrics; default: that of the function")


class RewardOptions(GroupedOptions):
    """Options of the workload `reward`."""

    functions: list[FunctionOptions] = Field(
        min_length=1,
        description="functions f(prompts, completions, **columns) -> list[float | None], as TRL's `reward_funcs`; "
        "the reward is the sum of theirs, each times its `weight`",
    )
    timeout_s: float = Field(
        30.0,
        gt=0,
        description="most seconds of processor time, and of sleep, of a call; an answer that takes more has no reward",
    )
    memory_mb: float = Field(4000.0, gt=0, description="most memory that a call may take, in 10^6 bytes")
    sealed: bool = Field(
        False,
        description="true: functions get no network, no programs and no environment variables, and write no files; "
        "for those that evaluate what a model wrote",
    )

    @field_validator("functions", mode="before")
    @classmethod
    def _plain_names(cls, value: Any) -> Any:
        return (
            [{"use": each} if isinstance(each, str) else each for each in value] if isinstance(value, list) else value
        )

    @field_validator("functions")
    @classmethod
    def _names_differ(cls, value: list[FunctionOptions]) -> list[FunctionOptions]:
        names = [_name(each) for each in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two functions are called {name!r}; give one of them another `name`")
        return value


class Reward(GroupedReward):
    """Scores answers with the user's functions. It is stateless and works with any world size."""

    Options = RewardOptions
    options: RewardOptions
    deterministic = True

    def setup(self, ctx: RankContext) -> None:
        """Import the functions, and start a worker for each."""
        self.ctx, options = ctx, self.options
        limits = JudgeLimits(options.timeout_s, options.memory_mb)
        self.functions = [
            RewardFunction(_name(each), _resolved(each.use), limits, sealed=options.sealed)
            for each in options.functions
        ]
        self.weights = np.array([each.weight for each in options.functions])
        self.told: set[tuple[str, str]] = set()
        for function in self.functions:
            function.start()
        self.threads = ThreadPoolExecutor(len(self.functions))

    def teardown(self) -> None:
        """See `Workload.teardown`. End the workers."""
        self.threads.shutdown()
        for function in self.functions:
            function.close()

    @operator(samples=Split(), returns=Split())
    def score(self, samples: Batch) -> Batch:
        """Add `reward` (float32, shape (rows,)), the weighted sum of the functions' rewards. Needs `text`.

        Functions get `prompts` and `completions` (chats if the rows have `messages`, else texts), `completion_ids`, and
        all other columns of the rows and of `row`. Metrics: `reward`, and `reward_NAME` for each function. A function
        that returns None for a row does not count there. The reward is NaN where all do so, and where a function
        fails; `rewards_failed` counts the latter. `advantages` leaves rows without a reward out.
        """
        rewards, extra = self._rewards(samples, "reward")
        scored = samples | {"reward": rewards.astype(np.float32)}
        return scored | {"reward_extra": extra} if any(each.logs_extra for each in self.functions) else scored

    @operator(samples=Split())
    def evaluate(self, samples: Batch) -> None:
        """Report `eval_reward`, `eval_reward_NAME` for each function, and the first answers as `eval_answers`."""
        rewards, _ = self._rewards(samples, "eval_reward")
        if self.ctx.rank == 0:
            asked = samples["question"] if "question" in samples else [""] * samples.rows
            shown = zip(asked, samples["text"], rewards.tolist(), strict=True)
            answers = [{"question": asked, "text": text, "reward": reward} for asked, text, reward in shown]
            self.ctx.record(eval_answers=answers[:_SHOWN])

    def _rewards(self, samples: Batch, metric: str) -> tuple[NDArray[np.float64], list[dict[str, Any]]]:
        """Return the reward of each row, and what functions logged of it."""
        extra: list[dict[str, Any]] = [{} for _ in range(samples.rows)]
        scores = np.full((samples.rows, len(self.functions)), np.nan)
        failed = np.zeros(samples.rows, dtype=bool)
        for at, (name, found) in enumerate(self._called(samples)):
            for row, reward in enumerate(found.rewards):
                if isinstance(reward, Failed):
                    failed[row] = True
                    self._tell(name, reward)
                elif reward is not None and not np.isnan(reward):
                    scores[row, at] = reward
                    self.ctx.metric(**{f"{metric}_{name}": reward})
            self.ctx.metric(**found.metrics)
            for column, values in found.extra.items():
                for logged, value in zip(extra, values, strict=True):
                    logged[column] = value
        nothing = np.isnan(scores).all(axis=1) | failed
        rewards = np.where(nothing, np.nan, np.nansum(scores * self.weights, axis=1))
        for reward in rewards[~nothing]:
            self.ctx.metric(**{metric: reward})
        return rewards, extra

    def _called(self, samples: Batch) -> list[tuple[str, Rewarded]]:
        """Call all functions at the same time. Return their names and results."""
        if not samples.rows:
            return []
        answers = self._answers(samples)
        found = self.threads.map(lambda function: function(answers), self.functions)
        return [(function.name, each) for function, each in zip(self.functions, found, strict=True)]

    def _answers(self, samples: Batch) -> Answers:
        columns = {name: _listed(samples[name]) for name in samples if name not in _OTHERS}
        if "row" in samples:
            names = dict.fromkeys(name for row in samples["row"] for name in row)
            columns |= {n: [row.get(n) for row in samples["row"]] for n in names if n not in _SAMPLED}
        completions: list[Any] = [str(text) for text in samples["text"]]
        if "messages" in samples:
            prompts = list(samples["messages"])
            completions = [[{"role": "assistant", "content": text}] for text in completions]
        else:
            prompts = list(samples["prompt"]) if "prompt" in samples else [""] * len(completions)
        return Answers(prompts, completions, columns, self.ctx.step, self.ctx.steps or -1)

    def _tell(self, name: str, failed: Failed) -> None:
        self.ctx.count(rewards_failed=1)
        if (name, failed.reason) not in self.told and len(self.told) < _REASONS:
            self.told.add((name, failed.reason))
            self.ctx.warn(f"an answer has no reward: the function {name} has failed ({failed.reason})")


def _name(function: FunctionOptions) -> str:
    return function.name or function.use.attr.rpartition(".")[2]


def _listed(column: Any) -> list[Any]:
    """Return a column as a list of Python values; arrays of tokens become lists, as functions for TRL expect."""
    return [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in column]


def _resolved(use: ImportRef) -> Any:
    try:
        function = use.resolve()
    except Exception as error:
        what = f"{str(use)!r} cannot be imported: {type(error).__name__}: {error}"
        raise OptionsError(what, where="functions", remedy="correct the module") from error
    if not callable(function) or isinstance(function, type):
        what = f"{str(use)!r} is a {type(function).__name__}"
        raise OptionsError(what, where="functions", remedy="name a function f(prompts, completions, **columns)")
    return function
