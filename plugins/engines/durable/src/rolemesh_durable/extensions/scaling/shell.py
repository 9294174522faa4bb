"""The scalers' part of the master's process: it creates the plugins, and asks each in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from rolemesh.api.observer import StepMetrics
from rolemesh.errors import RolemeshError
from rolemesh.plugins.manager import misbehaved
from rolemesh_durable.extensions.scaling.master import AskScaler, ScalerSaid
from rolemesh_durable.plugin_calls import checked, created
from rolemesh_durable.protocol.master.shell import Carry, MasterShell, ShellPart
from rolemesh_durable.scalers import Load, Wanted

__all__ = ["Scalers"]

MOST_LINES = 1000
"""Maximum number of lines of metrics that a scaler gets with one question, the latest ones."""


class Scalers(ShellPart):
    """The job's scalers, in the job file's order."""

    def __init__(self, shell: MasterShell) -> None:
        super().__init__(shell)
        self._plugins = created(shell.config.scalers.values(), shell.config.job.base)

    def effects(self) -> Mapping[type, Carry]:
        """Questions to scalers."""
        return {AskScaler: self._ask}

    def _ask(self, question: AskScaler) -> None:
        shell, index, lines = self._shell, question.index, tuple(self._shell.lines)

        def task() -> None:
            shell.put(ScalerSaid(index, self.decide(index, question.load, lines)))

        shell.beside("scaler", task, partial(ScalerSaid, index, None))

    def decide(self, index: int, load: Load, lines: Sequence[StepMetrics]) -> Wanted | None:
        """Return the answer of scaler number `index` about the job's load; `lines` are the latest lines of metrics.

        Raises `RolemeshError`.
        """
        now = time.time()
        within = tuple(line for line in lines if line.time >= now - load.window_s)[-MOST_LINES:]
        load = msgspec.structs.replace(load, now=now, metrics=within, run_dir=self._shell.config.job.run_dir)
        name = self._plugins.names[index]
        record = self._plugins.record(name)
        try:
            value = self._plugins.instance(name).decide(load)
        except RolemeshError:
            raise
        except Exception as error:
            raise misbehaved(record, f"failed in its decide(): {type(error).__name__}: {error}") from error
        return checked(record, "decide()", value, Wanted)
