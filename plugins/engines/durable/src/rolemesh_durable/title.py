"""What people see of a process of a job in ``ps`` and ``top``."""

from __future__ import annotations

import os

# Who looks for a job's processes reads their variables, so the title must not lie over them.
os.environ.setdefault("SPT_NOENV", "1")

from setproctitle import setproctitle

__all__ = ["entitle"]


def entitle(job: str, what: str) -> None:
    """This process is `what` of `job`: ``rolemesh: grpo trainer/0``. As long as the command line was, at most."""
    setproctitle(f"rolemesh: {job} {what}")
