"""The conditions of the job file's `until`, after which the job finishes in good order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rolemesh.api.observer import StepMetrics
from rolemesh_durable.control.history import lines
from rolemesh_durable.control.living import LivingRun
from rolemesh_durable.protocol.master import events as e

__all__ = ["Until"]

LOOK_BACK = 1024
"""Number of steps of the predecessor's lines to check: it may have died before it journalled their result."""


class Until:
    """Remembers the first condition that held and repeats it to the machine, where a repetition changes nothing."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._reason = None if spec.get("metric") is None else _reason(spec)
        self._max_s: float | None = spec.get("max_s")
        self._why = ""

    def look(self, told: Iterable[StepMetrics]) -> None:
        """Check new lines."""
        if self._reason is not None and not self._why:
            self._why = next(filter(None, map(self._reason, told)), "")

    def look_back(self, run_dir: Path, published: int) -> None:
        """Check an earlier master's lines up to step `published`. Any thread may call this."""
        if self._reason is not None:
            for page in lines(LivingRun(run_dir), published - LOOK_BACK):
                self.look(page)

    def events(self, seconds: float) -> list[e.Event]:
        """Return the events for the machine, `seconds` after the job's start."""
        if self._max_s and seconds >= self._max_s:
            self._why = self._why or f"{self._max_s:g} s have passed"
        return [e.FinishAsked(self._why)] if self._why else []


def _reason(spec: dict[str, Any]) -> Callable[[StepMetrics], str]:
    # The model of job files takes a quarter of a master's imports, and most jobs have no such condition.
    from rolemesh.job_file.model import UntilSpec

    return UntilSpec.model_validate(spec).reason
