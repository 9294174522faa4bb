"""Calls a failover level through its hooks, as the master does, with the master's time limits."""

from __future__ import annotations

from typing import Any

import msgspec

from rolemesh.api.failover import GiveUp
from rolemesh.api.failures import Failure, JobView, Pass, RecoveryPlan, Verdict
from rolemesh.errors import RolemeshError
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins
from rolemesh_durable.api.testing import LadderLevel, asked
from rolemesh_testing.subprocess_probe import Subject

__all__ = ["Level", "recover_there"]


class Level:
    """One instance of the level. `renewed` makes another with the same options."""

    def __init__(self, record: PluginRecord, cls: type[Any], options: Any) -> None:
        self._made_of = record, cls, options
        self._plugins = JobPlugins()
        self.instance = self._plugins.create(record.name, record, cls, options)
        self.name = record.name

    @property
    def diagnoses(self) -> bool:
        """True if the plugin has the hook `diagnose`."""
        return "diagnose" in hooks_of(self._made_of[1])

    @property
    def on_ladder(self) -> LadderLevel:
        """The level, as the only one of a job's ladder."""
        options = self.instance.options
        return LadderLevel(self.name, self.instance.scope, options.max_attempts, options.window_s, self.recover)

    def renewed(self) -> Level:
        """Return a new instance."""
        return Level(*self._made_of)

    def answer(self, failure: Failure, view: JobView) -> RecoveryPlan | Pass | GiveUp | None:
        """Return the answer of the hook `recover`. Raises `PluginError` if the hook raises or returns another type."""
        answer: Any = asked(self._plugins, self.name, "recover", RecoveryPlan, Pass, GiveUp, failure=failure, view=view)
        found: RecoveryPlan | Pass | GiveUp | None = answer
        return found

    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | None:
        """Return the plan of the hook `recover`; None for a `Pass` or `GiveUp`. Raises like `answer`."""
        answer = self.answer(failure, view)
        return answer if isinstance(answer, RecoveryPlan) else None

    def diagnose(self, failure: Failure, view: JobView) -> Verdict | None:
        """Return the verdict of the hook `diagnose`; None if there is no such hook. Raises like `recover`."""
        return asked(self._plugins, self.name, "diagnose", Verdict, failure=failure, view=view)

    def answers(self, failure: Failure, view: JobView) -> tuple[Any, Any]:
        """Return the answers of both hooks as text; for an exception, its text."""
        return self._said(self.answer, failure, view), self._said(self.diagnose, failure, view)

    @staticmethod
    def _said(hook: Any, failure: Failure, view: JobView) -> Any:
        try:
            return hook(failure, view)
        except RolemeshError as error:
            return error.what


class _Question(msgspec.Struct):
    failure: Failure
    view: JobView


def recover_there(subject: Subject, troubles: bytes) -> bytes:
    """Answer all failures in another process: each with its `failure` and `view`, as JSON."""
    level = Level(subject.record, *subject.loaded())
    asked = msgspec.json.decode(troubles, type=list[_Question])
    return msgspec.json.encode([level.answers(question.failure, question.view) for question in asked])
