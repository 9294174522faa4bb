"""The title of a job's process in ``ps`` and ``top``."""

from __future__ import annotations

import os

# Tools find a job's processes by their environment variables, so the title must not overwrite them.
os.environ.setdefault("SPT_NOENV", "1")

from setproctitle import setproctitle

__all__ = ["entitle"]


def entitle(job: str, what: str) -> None:
    """Set this process's title to `what` of `job`: ``rolemesh: grpo trainer/0``. The command line limits its length."""
    setproctitle(f"rolemesh: {job} {what}")
