"""The environment `verifiers`: the tasks of verifiers, and episodes of the environment that plays them."""

from __future__ import annotations

from typing import Any, Literal

from rolemesh.errors import OptionsError
from rolemesh_agents import Environment, Episode
from rolemesh_verifiers.episode import VerifiersEpisode
from rolemesh_verifiers.options import VerifiersOptions
from rolemesh_verifiers.serving import Serving

__all__ = ["VerifiersEnvironment"]


class VerifiersEnvironment(Environment):
    """Runs an environment of verifiers in the ranks of the role `environment`. The model is rolemesh's.

    Its code runs in one thread, since some environments use global random numbers.
    """

    Options = VerifiersOptions

    def __init__(self, options: VerifiersOptions) -> None:
        super().__init__(options)
        self._serving = Serving(options)

    def size(self, split: Literal["train", "eval"]) -> int:
        """See `Environment.size`. Raises `OptionsError` if there is no task for training."""
        options: VerifiersOptions = self.options
        count = self._serving.run(self._serving.counted(split)).result()
        if not count and split == "train":
            where = "taskset" if options.environment is None else "environment"
            remedy = "look at its settings, and at its data: they choose no task"
            raise OptionsError(f"{options.name} has no tasks", where=where, remedy=remedy)
        held = min(options.eval_size, count)
        if split == "eval":
            return held
        if self._apart:
            return count
        if count <= options.eval_size:
            what = f"there are {count} tasks, and {held} of them are held out"
            raise OptionsError(what, where="eval_size", remedy="make it smaller, or give `held_out` tasks of its own")
        return count - held

    def task(self, split: Literal["train", "eval"], number: int, seed: int) -> dict[str, Any]:
        """See `Environment.task`. The data is the task's number in verifiers, and a hash of its content."""
        options: VerifiersOptions = self.options
        index = number + (options.eval_size if split == "train" and not self._apart else 0)
        _, content = self._serving.run(self._serving.task(split, index)).result()
        return {"index": index, "hash": content}

    def episode(self) -> Episode:
        """See `Environment.episode`."""
        return VerifiersEpisode(self._serving, self.options)

    def close(self) -> None:
        """See `Environment.close`."""
        self._serving.close()

    @property
    def _apart(self) -> bool:
        return self._serving.run(self._serving.apart()).result()
