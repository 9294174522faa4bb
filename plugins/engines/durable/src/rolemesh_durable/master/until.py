"""Whether what the job file's `until` says has come: the job is to finish then, in good order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rolemesh.api.observer import StepMetrics
from rolemesh.job_file.model import UntilSpec
from rolemesh_durable.control.history import lines
from rolemesh_durable.control.living import LivingRun
from rolemesh_durable.protocol.master import events as e

__all__ = ["Until"]

LOOK_BACK = 1024
"""So many steps of its predecessor's lines are looked at: it may have died before it journalled what they say."""


class Until:
    """The first condition that held, until the machine has been told; saying so again changes nothing."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = UntilSpec.model_validate(spec)
        self._why = ""

    def look(self, told: Iterable[StepMetrics]) -> None:
        """These lines have been made."""
        if self._spec.metric is not None and not self._why:
            self._why = next(filter(None, map(self._spec.reason, told)), "")

    def look_back(self, run_dir: Path, published: int) -> None:
        """The lines up to step `published` are an earlier master's. From any thread."""
        if self._spec.metric is not None:
            for page in lines(LivingRun(run_dir), published - LOOK_BACK):
                self.look(page)

    def events(self, seconds: float) -> list[e.Event]:
        """What the machine is to be told, `seconds` after the job's start."""
        if self._spec.max_s and seconds >= self._spec.max_s:
            self._why = self._why or f"{self._spec.max_s:g} s have passed"
        return [e.FinishAsked(self._why)] if self._why else []
