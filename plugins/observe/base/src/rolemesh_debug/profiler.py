"""The profiler of a rank: `torch.profiler` around some steps, which writes a Chrome trace."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

from rolemesh_debug.profile_messages import ProfileDone, ProfileOrder
from rolemesh_durable.api.extensions import Rank

__all__ = ["PROFILES_DIR", "Profiler"]

LOG = logging.getLogger(__name__)
PROFILES_DIR = "profiles"
"""The folder with profiles, in the run's folder."""


class Profiler:
    """Carries out the orders of the master, one after the other, between two steps of the rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._order: ProfileOrder | None = None
        self._running: Any = None
        self._first = self._steps = 0
        self._carried_out = ""

    def order(self, order: ProfileOrder) -> None:
        """Take an order. A repeated one changes nothing."""
        if self._running is None and order.reason != self._carried_out:
            self._order = order if order.steps else None

    def before_step(self, step: int) -> None:
        """Begin the profile that is ordered."""
        order = self._order
        if order is None or self._running is not None:
            return
        self._first, self._steps = step, 0
        if "torch" not in sys.modules:
            self._done(failed="the rank has not imported torch, so there is nothing to profile")
            return
        try:
            profiler: Any = importlib.import_module("torch.profiler")
            running = profiler.profile(record_shapes=True)
            running.start()
            self._running = running
        except Exception as problem:  # another profiler runs, or a driver lacks the right: the job goes on
            self._done(failed=f"{type(problem).__name__}: {problem}")

    def step_done(self) -> None:
        """Count the step, and end the profile after the last one."""
        if self._running is not None and self._order is not None:
            self._steps += 1
            if self._steps >= self._order.steps:
                self.end()

    def end(self) -> None:
        """End the profile, if there is one, and write it. Never raises."""
        running, self._running = self._running, None
        if running is None:
            return
        ctx = self._rank.ctx
        name = f"{PROFILES_DIR}/{ctx.role}-{ctx.rank}-step-{self._first}.json"
        try:
            running.stop()
            _write(running, ctx.run_dir / name)
        except Exception as problem:  # the disk is full: the job goes on
            LOG.warning("the profile of this rank cannot be written", exc_info=problem)
            self._done(failed=f"{type(problem).__name__}: {problem}")
            return
        self._done(file=name)

    def _done(self, *, file: str = "", failed: str = "") -> None:
        order, self._order = self._order, None
        if order is not None:
            self._carried_out = order.reason
            self._rank.tell_master(ProfileDone(order.reason, self._first, self._steps, file, failed))


def _write(profile: Any, path: Path) -> None:
    """Write the trace. A reader finds all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.json")
    profile.export_chrome_trace(str(part))
    part.replace(path)
