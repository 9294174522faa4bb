"""Calls of reward functions, whose signature is that of TRL's `reward_funcs`, in worker processes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from rolemesh.errors import OptionsError, RolemeshError
from rolemesh_processes.judging import Failed, JudgeLimits, Judges

__all__ = ["Answers", "RewardFunction", "Rewarded"]

Function = Callable[..., Any]
_GIVEN = ("prompts", "completions", "trainer_state", "log_extra", "log_metric")
"""Arguments that every call has besides columns, and before any of the same name; see TRL's `GRPOTrainer`."""


class Answers(NamedTuple):
    """The rows that functions judge. All lists have an entry per row."""

    prompts: list[Any]
    completions: list[Any]
    columns: Mapping[str, list[Any]]
    """`completion_ids` (where there are tokens) and the columns of the data."""
    step: int
    steps: int

    def only(self, row: int) -> Answers:
        """Return the answers with this row only."""
        columns = {name: [values[row]] for name, values in self.columns.items()}
        return self._replace(prompts=[self.prompts[row]], completions=[self.completions[row]], columns=columns)


class Rewarded(NamedTuple):
    """The result of a function for some rows."""

    rewards: list[float | Failed | None]
    """None: the function does not apply to the row."""
    metrics: Mapping[str, float]
    extra: Mapping[str, list[Any]]


class RewardFunction:
    """A function of the user. Its calls run in workers, so that one that hangs, exits or dies costs no process."""

    def __init__(self, name: str, function: Function, limits: JudgeLimits, *, sealed: bool) -> None:
        self.name, self._function = name, function
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
        self._takes = {each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
        self._needs = {each.name for each in parameters if each.name in self._takes and each.default is each.empty}
        self.logs_extra = self._takes_all or "log_extra" in self._takes
        """Whether it may log columns."""
        self._judges, self._evaluates = Judges(self._judge, limits, sealed=sealed), sealed
        self._works = False
        """Whether it has returned a reward."""

    def start(self) -> None:
        """Start a worker."""
        self._judges.start()

    def close(self) -> None:
        """End the workers."""
        self._judges.close()

    def __call__(self, answers: Answers) -> Rewarded:
        """Return the rewards of all rows.

        If the call fails, each row gets a call of its own, so that only rows with which it fails have no reward. So it
        does if a sealed function has run code of an answer, which may have changed the rewards of others.
        Raises `RolemeshError` if it has failed with every row so far, or if only its calls for single rows return the
        right number of rewards: then the function is wrong, not an answer.
        """
        missing = sorted(self._needs - {*_GIVEN, *answers.columns})
        if missing:
            what = f"the reward function {self.name} needs {missing[0]!r}, which is no column of the rows"
            remedy = f"name a column in its signature; there are {', '.join(sorted(answers.columns))}"
            raise OptionsError(what, where="functions", remedy=remedy)
        if not self._takes_all:
            answers = answers._replace(columns={k: v for k, v in answers.columns.items() if k in self._takes})
        rows = len(answers.prompts)
        (found,) = self._judges.judge([(answers,)], clean=self._evaluates and rows > 1)
        if isinstance(found, Failed | str) and rows != 1:
            rewarded = _joined(self._judges.judge([(answers.only(row),) for row in range(rows)]))
        else:
            rewarded = _joined([found]) if rows == 1 else Rewarded(**found)
        failed = [each for each in rewarded.rewards if isinstance(each, Failed)]
        self._works |= len(failed) < rows
        if isinstance(found, str) and not failed:
            what = f"the reward function {self.name} works for single rows only: {found}"
            raise RolemeshError(what, remedy="return one reward per completion, or None where it does not apply")
        if failed and not self._works:
            what = f"the reward function {self.name} fails for each row: {failed[0].reason}"
            raise RolemeshError(what, remedy="correct the function; see the log of this rank for its output")
        return rewarded

    def _judge(self, answers: Answers) -> dict[str, Any] | str:
        """Call the function, in a worker. Return the fault if the number of rewards is wrong."""
        metrics: dict[str, float] = {}
        extra: dict[str, list[Any]] = {}
        given = {
            **answers.columns,
            "prompts": answers.prompts,
            "completions": answers.completions,
            "trainer_state": SimpleNamespace(global_step=answers.step, max_steps=answers.steps),
            "log_extra": lambda name, values: extra.update({str(name): [_plain(value) for value in values]}),
            "log_metric": lambda name, value: metrics.update({str(name): float(value)}),
        }
        rewards = self._function(**{k: v for k, v in given.items() if self._takes_all or k in self._takes})
        if inspect.isawaitable(rewards):
            rewards = asyncio.run(_awaited(rewards))
        rewards = [None if reward is None else _number(reward) for reward in rewards]
        if len(rewards) != len(answers.prompts):
            return f"it returned {len(rewards)} rewards for {len(answers.prompts)} rows"
        for name, values in extra.items():
            if len(values) != len(rewards):
                raise ValueError(f"it logged {len(values)} values of {name} for {len(rewards)} rows")
        return {"rewards": rewards, "metrics": metrics, "extra": extra}


def _number(reward: Any) -> float:
    if isinstance(reward, str | bytes):
        raise TypeError(f"the reward {reward[:80]!r} is no number")
    return float(reward)


async def _awaited(rewards: Any) -> Any:
    return await rewards


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _joined(found: Sequence[Any]) -> Rewarded:
    """Return the results of calls for one row each as those of one call. A metric is the mean of theirs."""
    found = [Failed(each) if isinstance(each, str) else each for each in found]
    good = [Rewarded(**each) for each in found if not isinstance(each, Failed)]
    rewards = [each if isinstance(each, Failed) else each["rewards"][0] for each in found]
    values: dict[str, list[float]] = {}
    for each in good:
        for name, value in each.metrics.items():
            values.setdefault(name, []).append(value)
    names = {name for each in good for name in each.extra}
    extra = {
        name: [None if isinstance(each, Failed) else next(iter(each["extra"].get(name, ())), None) for each in found]
        for name in sorted(names)
    }
    return Rewarded(rewards, {name: sum(every) / len(every) for name, every in values.items()}, extra)
