"""The extension: it records how long each rank took for its steps."""

import time
from typing import ClassVar

from pydantic import BaseModel, Field
from rolemesh_durable.api.extensions import Extension, Rank, RankExtension

__all__ = ["{{ cookiecutter.__class }}"]


class {{ cookiecutter.__class }}(Extension):
    """Adds the record ``seconds <role>/<rank>`` to the lines of metrics: the time since the rank's last record."""

    class Options(BaseModel, extra="forbid"):
        """Options in the job file."""

        every: int = Field(default=1, ge=1, description="Steps between two records of a rank.")

    options: Options

    def in_rank(self, rank: Rank) -> RankExtension:
        """Take part in every rank."""
        return RankTimes(rank, self.options.every)


class RankTimes(RankExtension):
    """Times one rank."""

    clock: ClassVar = staticmethod(time.monotonic)

    def __init__(self, rank: Rank, every: int) -> None:
        self._rank, self._every = rank, every
        self._name = f"seconds {rank.ctx.role}/{rank.ctx.rank}"
        self._since = self.clock()

    def step_done(self, step: int, held: bool) -> None:
        """Record the time after each `every` steps."""
        if (step + 1) % self._every == 0:
            now = self.clock()
            self._rank.record({self._name: round(now - self._since, 6)})
            self._since = now
