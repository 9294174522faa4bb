"""The registry of reasoning-gym: the tasks, the check of a config, and datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rolemesh.errors import OptionsError, did_you_mean, nearest

__all__ = ["ENV", "check_task", "extracted", "highest_level", "leveled", "make_dataset", "verified"]

_SET_BY_WORKLOAD = {"seed": "the job's seed", "size": "the job's steps"}

ENV = {"PYTHONHASHSEED": "0"}
"""Fixed hash seed: a few tasks iterate over sets of strings, so their questions depend on it."""


def check_task(task: str, config: Mapping[str, Any]) -> None:
    """Raise `OptionsError` unless `task` exists and its config class accepts `config`.

    Imports reasoning_gym (about two seconds, no torch).
    """
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise OptionsError(
            f"reasoning-gym has no task {task!r}",
            where="task",
            remedy=did_you_mean(task, DATASETS) or f"there are {len(DATASETS)}, e.g. {min(DATASETS)!r}",
        )
    kind = DATASETS[task][1]
    fields = {field.name for field in dataclasses.fields(kind)} - _SET_BY_WORKLOAD.keys()
    for name in config:
        if name in _SET_BY_WORKLOAD:
            raise OptionsError(
                f"{name} is set by the workload, from {_SET_BY_WORKLOAD[name]}",
                where=f"config.{name}",
                remedy="remove it from `config`",
            )
        if name not in fields:
            raise OptionsError(
                f"the task {task!r} has no setting {name!r}", where=f"config.{name}", remedy=nearest(name, fields)
            )
    try:
        made = kind(**_typed(kind, config))
        if hasattr(made, "validate"):
            made.validate()
        if task == "composite":
            for each in made.datasets:
                check_task(each.name, each.config)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise OptionsError(
            f"the task {task!r} refuses this config: {error}", where="config", remedy=f"see {kind.__module__}"
        ) from error


def highest_level(task: str) -> int:
    """Return the highest level of the task's curriculum. The lowest is 0. Raises `OptionsError` if there is none."""
    from reasoning_gym.factory import create_curriculum, has_curriculum

    if not has_curriculum(task):
        what = f"reasoning-gym has no curriculum for the task {task!r}"
        raise OptionsError(what, where="curriculum", remedy="remove `curriculum`, and describe the task in `config`")
    return max(len(each.levels) - 1 for each in create_curriculum(task).attributes.values())


def leveled(task: str, config: Mapping[str, Any], level: int) -> dict[str, Any]:
    """Return `config` with the settings of one level of the task's curriculum. Raises `OptionsError` if they are wrong.

    Attributes with fewer levels keep their highest one. A range reaches from its lowest level to this one.
    """
    from reasoning_gym.factory import create_curriculum

    curriculum = create_curriculum(task)
    curriculum.set_global_level(level)
    try:
        made = curriculum.generate_configuration(dict(config))
        made.validate()
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        what = f"level {level} of the task {task!r} is refused by reasoning-gym: {error}"
        raise OptionsError(what, where="curriculum", remedy="choose other levels with `first` and `last`") from error
    return {
        field.name: getattr(made, field.name)
        for field in dataclasses.fields(made)
        if field.name not in _SET_BY_WORKLOAD
    }


def make_dataset(task: str, config: Mapping[str, Any], *, seed: int, size: int) -> Any:
    """Return a reasoning-gym dataset. Item i is generated from ``seed + i``."""
    from reasoning_gym.factory import DATASETS, create_dataset

    return create_dataset(task, **_typed(DATASETS[task][1], config), seed=seed, size=size)


def _typed(kind: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the objects that its class wants: the parts of `composite` are mappings in a job file."""
    from reasoning_gym.composite import CompositeConfig, DatasetSpec

    found = dict(config)
    if kind is CompositeConfig and isinstance(parts := found.get("datasets"), list):
        found["datasets"] = [DatasetSpec(**{"weight": 1.0, "config": {}, **part}) for part in parts]
    return found


def verified(dataset: Any, entry: Mapping[str, Any], answer: str) -> float:
    """Return the score of an answer by the verifier of reasoning-gym, from 0 to 1.

    Some verifiers raise an exception for a text that they cannot parse. Such an answer is wrong: it scores 0. If the
    verifier also fails on the right answer of the entry, the fault is its own, and its exception is raised.

    The answer may do anything in this process, since some verifiers evaluate it. `Verifiers` calls this in others.
    """
    try:
        return float(dataset.score_answer(answer=answer, entry=entry))
    except (Exception, SystemExit, KeyboardInterrupt):
        if isinstance(right := entry.get("answer"), str):
            dataset.score_answer(answer=right, entry=entry)
        return 0.0


def extracted(text: str, tag: str | None) -> str | None:
    """Return the text in the last ``<tag>…</tag>``; None if there is none. Without a tag, the whole text."""
    if tag is None:
        return text
    from reasoning_gym.utils import extract_answer

    found: str | None = extract_answer(text, tag_name=tag, strip=False)
    return found
