"""Conformance of a diagnoser: it returns a verdict on a failure, or None, and never raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from pydantic import BaseModel

from rolemesh.api.failures import Failure, JobView, NodeState, RankView, Verdict, describe
from rolemesh.errors import RolemeshError
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins
from rolemesh_durable.api.testing import asked
from rolemesh_testing.clock import OFFSETS, shifted
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.failover.troubles import NOW, ROLES, Trouble, each_kind, trouble
from rolemesh_testing.pools import Pool, pooled
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere

__all__ = ["DiagnoserConformance"]


class _Asked:
    """One instance of the diagnoser. It calls hooks as the master does."""

    def __init__(self, record: PluginRecord, cls: type[Any], options: Any) -> None:
        self._made_of, self._name = (record, cls, options), record.name
        self._plugins = JobPlugins()
        self._plugins.create(record.name, record, cls, options)

    @property
    def module(self) -> str:
        """Module of the plugin's class."""
        return str(self._made_of[1].__module__)

    def renewed(self) -> _Asked:
        return _Asked(*self._made_of)

    def diagnose(self, failure: Failure, view: JobView) -> Verdict | None:
        return asked(self._plugins, self._name, "diagnose", Verdict, failure=failure, view=view)


class DiagnoserConformance(PluginConformance):
    """Subclass it with `plugin` and `options`.

    The diagnoser gets the same drawn failures that failover levels get.
    """

    kind = "diagnosers"
    examples: ClassVar[int] = 150
    """Number of drawn failures."""
    roles: ClassVar[Sequence[str]] = ROLES
    """Names of the roles in drawn jobs, the first ones first. Set it if the plugin knows roles by name."""
    simplify: ClassVar[bool] = True
    """True to search for the simplest input when a test fails, which takes seconds."""

    @pytest.fixture
    def diagnoser(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel, request: pytest.FixtureRequest
    ) -> _Asked:
        """The diagnoser."""
        return needed(request, "it cannot be created", lambda: _Asked(record, cls, checked_options))

    def pool(self) -> Pool[Trouble]:
        """The drawn failures, the same for all tests of the class."""
        roles = tuple(self.roles)
        return pooled(Trouble, lambda random: trouble(random, roles), self.examples, roles)

    def test_it_has_the_hook_that_diagnoses(self, cls: type[object]) -> None:
        """The plugin has ``diagnose``, marked with `rolemesh.hookimpl`. Without the mark the engine never calls it."""
        assert "diagnose" in hooks_of(cls), "no method diagnose is marked with @hookimpl, so it is never called"

    def test_it_judges_every_kind_of_failure(self, diagnoser: _Asked) -> None:
        """It returns a verdict, or None if it cannot tell, for every cause and every component."""
        for kind, each in each_kind(self.roles):
            _answer(kind, lambda each=each: diagnoser.diagnose(each.failure, each.view))  # type: ignore[misc]

    def test_it_judges_in_every_situation(self, diagnoser: _Asked) -> None:
        """The states of the ranks, the earlier attempts and the failed component vary. The job may not even have that
        component.
        """
        self._for_all(lambda at: _answer(describe(at.failure), lambda: diagnoser.diagnose(at.failure, at.view)))

    def test_its_verdicts_have_a_reason(self, diagnoser: _Asked) -> None:
        """A user who asks why the job was not restarted reads the reason."""

        def check(at: Trouble) -> None:
            verdict = diagnoser.diagnose(at.failure, at.view)
            assert verdict is None or verdict.reason.strip(), f"{describe(at.failure)}: a verdict without a reason"

        self._for_all(check)

    def test_it_answers_in_time_for_ten_thousand_ranks(self, diagnoser: _Asked) -> None:
        """The whole job waits for the answer."""
        ranks = tuple(RankView("sandbox", rank, f"node-{rank // 8}", "running", 3, 0, 2) for rank in range(10_000))
        nodes = tuple(NodeState(f"node-{number}", f"node-{number}/0", number != 7) for number in range(1250))
        view = JobView("large", 1, 2, ranks, (), (), nodes, 1, now=NOW)
        failure = Failure("signal", "sandbox", 60, signal=9)
        _answer("a job of 10,000 ranks", lambda: diagnoser.diagnose(failure, view))

    def test_the_same_failure_has_the_same_verdict(self, diagnoser: _Asked) -> None:
        """A restarted master asks again. Use no randomness, no clock except `view.now`, and no memory."""
        used, fresh = diagnoser.renewed(), diagnoser.renewed()
        troubles = list(self.pool())
        first = [used.diagnose(at.failure, at.view) for at in troubles]
        for at, verdict in zip(reversed(troubles), reversed(first), strict=True):
            what = f"{describe(at.failure)}: the verdict depends on what it has been asked before, or on chance"
            assert fresh.diagnose(at.failure, at.view) == verdict == used.diagnose(at.failure, at.view), what
        for seconds in OFFSETS:
            with shifted(seconds, diagnoser.module):
                for at, verdict in zip(troubles[:20], first, strict=False):
                    what = f"{describe(at.failure)}: {seconds} s later the verdict is another one; use view.now"
                    assert fresh.diagnose(at.failure, at.view) == verdict, what

    def test_its_arguments_stay_as_they_are(self, diagnoser: _Asked) -> None:
        """All diagnosers get the same failure and view, whose dictionaries are mutable."""

        def check(at: Trouble) -> None:
            before = msgspec.json.encode(at)
            diagnoser.diagnose(at.failure, at.view)
            assert msgspec.json.encode(at) == before, f"{describe(at.failure)}: it writes into its arguments"

        self._for_all(check)

    def test_another_process_has_the_same_verdict(self, record: PluginRecord, diagnoser: _Asked) -> None:
        """The other process has another hash seed and no memory, like a master after a restart."""
        few = list(self.pool())[:50]
        subject, payload = Subject(record, dict(self.options), ""), msgspec.json.encode(few)
        for _ in range(2):
            used = msgspec.json.encode([diagnoser.diagnose(at.failure, at.view) for at in few])
        one, other = (ask_elsewhere(_diagnose_there, subject, payload, hash_seed=seed) for seed in (1, 2))
        assert one == other, "the verdict depends on the order of hashes: sort your sets"
        assert one == used, "a process that was asked before has other verdicts"

    def _for_all(self, check: Callable[[Trouble], None]) -> None:
        self.pool().check(check, simplify=self.simplify)


class _Question(msgspec.Struct):
    failure: Failure
    view: JobView


def _diagnose_there(subject: Subject, troubles: bytes) -> bytes:
    asked = _Asked(subject.record, *subject.loaded())
    questions = msgspec.json.decode(troubles, type=list[_Question])
    return msgspec.json.encode([asked.diagnose(question.failure, question.view) for question in questions])


def _answer(what: str, ask: Callable[[], object]) -> None:
    try:
        ask()
    except RolemeshError as error:
        raise AssertionError(f"{what}: {error.what}; return None where it cannot tell") from error
