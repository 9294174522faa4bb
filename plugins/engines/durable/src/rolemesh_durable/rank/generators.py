"""The random generators that libraries share within a process, after the fork that copied them."""

from __future__ import annotations

import random

import numpy.random  # numpy itself would import it on first use, once more in each rank

from rolemesh.api.workload import RankContext

__all__ = ["seed_generators"]


def seed_generators(ctx: RankContext, resume: int) -> None:
    """Seed `random` and `numpy.random` of this rank, which continues after step `resume`.

    Ranks are forked from one process, so numpy's global generator would draw the same numbers in all of them. The seed
    follows from the job's seed, role, rank and step: a second run of the job draws the same numbers.
    """
    seed = ctx.seed_for("generators", ctx.role, ctx.rank, resume)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
