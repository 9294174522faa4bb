"""The extension `watch`: NaN, infinite and spiking metrics fail the operator that reports them, or warn."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from rolemesh.api.workload import RankContext
from rolemesh.errors import EXIT_FAILED, RolemeshError
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh.runs.run import write_json
from rolemesh_debug.failed_calls import FAILURES_DIR
from rolemesh_debug.spikes import Usual, usual, wrong
from rolemesh_durable.api.extensions import Extension, Rank, RankExtension
from rolemesh_runtime.run_files import content_in

__all__ = ["Judged", "Rule", "Watch", "WatchError", "WatchOptions", "decisions", "decisions_file"]

MOST_WARNINGS = 5
"""Maximum number of warnings of one metric in a life of a rank."""


class WatchError(RolemeshError):
    """A metric is NaN, infinite, or far from its usual values."""

    exit_code = EXIT_FAILED


class Rule(BaseModel, extra="forbid", frozen=True):
    """When a value of a metric is wrong, and what happens then. NaN and infinite values always are."""

    spike: float | None = Field(
        default=None, gt=0, description="Median absolute deviations from the median that a value may have; null: any."
    )
    over: int = Field(default=100, ge=5, le=100_000, description="Number of values before it that count.")
    after: int = Field(default=20, ge=5, description="Number of values without a judgement about spikes.")
    then: Literal["fail", "warn"] = Field(default="fail", description="fail: the operator fails; warn: only warn.")


class WatchOptions(BaseModel):
    """A `Rule` for each metric, by its name: ``{loss: {spike: 6}, reward: {then: warn}}``."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Rule] = Field(init=False)

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules by metric."""
        return dict(self.__pydantic_extra__ or {})


class Watch(Extension):
    """Looks at each value of `RankContext.metric` that the options name, in the rank that reports it."""

    Options: ClassVar[type[BaseModel]] = WatchOptions
    options: WatchOptions

    def in_rank(self, rank: Rank) -> RankExtension | None:
        """Take part in every rank if there are rules."""
        return MetricWatch(rank, self.options.rules) if self.options.rules else None


class Judged(msgspec.Struct, frozen=True):
    """A decision, which the rank's next life and `rolemesh replay-op` repeat: the usual values of a metric at the step
    at which it failed, and the allowed distance from them."""

    step: int
    before: Usual | None
    spike: float | None = None


class MetricWatch(RankExtension):
    """The part in a rank. A new life of the rank begins to gather values again."""

    def __init__(self, rank: Rank, rules: Mapping[str, Rule]) -> None:
        ctx = rank.ctx
        self._ctx: RankContext = ctx
        self._rules = rules
        self._values = {name: deque[float](maxlen=rule.over) for name, rule in rules.items()}
        self._warned: dict[str, int] = {}
        self._file = decisions_file(ctx.run_dir, ctx.role, ctx.rank)
        self._judged: dict[str, Judged] | None = None

    def opened(self, resume: int) -> None:
        """Read the decisions of the rank's former lives."""
        self._judged = decisions(self._file) if self._ctx.generation else {}

    def measured(self, values: Mapping[str, float], item: int | None) -> None:
        """Judge the values that have a rule. Raises `WatchError`."""
        for name in self._rules.keys() & values.keys():
            self._judge(name, float(values[name]))

    def _judge(self, name: str, value: float) -> None:
        rule, seen, step = self._rules[name], self._values[name], self._ctx.step
        judged = (self._judged or {}).get(name)
        if judged is not None and judged.step == step:
            before = judged.before
        else:
            before = usual(seen) if rule.spike is not None and len(seen) >= min(rule.after, rule.over) else None
        found = wrong(value, before, rule.spike)
        if math.isfinite(value):
            seen.append(value)
        if not found:
            return
        if rule.then == "warn":
            self._warned[name] = self._warned.get(name, 0) + 1
            if self._warned[name] <= MOST_WARNINGS:
                self._ctx.warn(f"{name} {found} (step {step})")
            return
        self._judged = {**(self._judged or {}), name: Judged(step, before, rule.spike)}
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, self._judged)
        raise WatchError(f"{name} {found}")


def decisions_file(run_dir: Path, role: str, rank: int) -> Path:
    """Return the file with the decisions about a rank's metrics."""
    return run_dir / FAILURES_DIR / f"watch-{role}-{rank}.json"


def decisions(path: Path) -> dict[str, Judged]:
    """Return the decisions in the file; none if there is no such file or it is damaged."""
    try:
        return msgspec.json.decode(content_in(path.parents[1], FAILURES_DIR, path.name), type=dict[str, Judged])
    except (OSError, *UNDECODABLE):
        return {}
