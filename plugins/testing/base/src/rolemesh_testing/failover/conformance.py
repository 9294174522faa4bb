"""Conformance of a failover level: it returns possible plans, or passes the failure on, and never raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any, ClassVar, get_args

import msgspec
import pytest
from pydantic import BaseModel

from rolemesh.api.failover import Budget, GiveUp
from rolemesh.api.failures import Attempt, Failure, JobView, NodeState, RankView, RecoveryPlan, Scope, describe
from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import PluginError, RolemeshError
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_durable.api.testing import propose
from rolemesh_testing.clock import OFFSETS, shifted
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.failover.level import Level, recover_there
from rolemesh_testing.failover.troubles import NOW, ROLES, Trouble, each_kind, trouble
from rolemesh_testing.pools import Pool, pooled
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere

__all__ = ["FailoverConformance"]


class FailoverConformance(PluginConformance):
    """Subclass it with `plugin` and `options`.

    The level gets drawn failures: every cause, of ranks, agents and nodes, including some that the job does not have.
    The jobs have collective and stateful roles, dead nodes, ranks in every state, and a history of recoveries.
    """

    kind = "failover"
    examples: ClassVar[int] = 150
    """Number of drawn failures."""
    roles: ClassVar[Sequence[str]] = ROLES
    """Names of the roles in drawn jobs, the first ones first. Set it if the plugin knows roles by name."""
    max_attempts: ClassVar[int] = 3
    """The budget that a test sets in the options. Give another one if the level refuses this one."""
    simplify: ClassVar[bool] = True
    """True to search for the simplest input when a test fails, which takes seconds."""

    @pytest.fixture
    def level(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel, request: pytest.FixtureRequest
    ) -> Level:
        """The level."""
        return needed(request, "it cannot be created", lambda: Level(record, cls, checked_options))

    @pytest.fixture
    def subject(self, record: PluginRecord) -> Subject:
        """The level, for another process."""
        return Subject(record, dict(self.options), "")

    def pool(self) -> Pool[Trouble]:
        """The drawn failures, the same for all tests of the class."""
        roles = tuple(self.roles)
        return pooled(Trouble, lambda random: trouble(random, roles), self.examples, roles)

    # --------------------------------------------------------------------------------------------------- declaration

    def test_it_has_the_hook_that_recovers(self, cls: type[object]) -> None:
        """The plugin has ``recover``, marked with `rolemesh.hookimpl`. Without the mark the engine never calls it."""
        assert "recover" in hooks_of(cls), "no method recover is marked with @hookimpl, so it is never called"

    def test_its_options_are_a_budget(self, cls: type[Any]) -> None:
        """The coordinator reads from the options how often it may try the level."""
        assert issubclass(cls.Options, Budget), f"{cls.Options.__name__} does not derive from rolemesh.Budget"

    def test_its_budget_is_the_one_of_the_job_file(
        self, record: PluginRecord, cls: type[Any], checked_options: BaseModel
    ) -> None:
        """`max_attempts` and `window_s`: after `max_attempts` recoveries of a rank within `window_s` seconds the ladder
        asks the next level.
        """
        most, window_s = self.max_attempts, 23.0
        given = checked_options.model_dump(mode="json") | {"max_attempts": most, "window_s": window_s}
        level = Level(record, cls, cls.Options.model_validate(given))
        options = level.instance.options
        found = getattr(options, "max_attempts", None), getattr(options, "window_s", None)
        wanted = f"max_attempts: {most} and window_s: {window_s:g}"
        assert found == (most, window_s), f"with {wanted} its options say {found}; keep self.options"
        for at in self.pool():
            spent = Attempt(level.name, NOW - 22.0, at.view.lost_with(at.failure), "")
            if spent.restart:
                view = msgspec.structs.replace(at.view, attempts=(spent,) * most)
                assert propose([at.failure], view, [level.on_ladder], []).plan is None

    def test_its_scope_is_one_of_the_ladders(self, cls: type[Any]) -> None:
        """The scope is process, node or job. A failure of a node starts at the first level whose scope is at least
        node.
        """
        assert cls.scope in get_args(Scope), f"scope is {cls.scope!r}, none of {', '.join(get_args(Scope))}"

    # ------------------------------------------------------------------------------------------------------- answers

    def test_it_answers_every_kind_of_failure(self, level: Level) -> None:
        """The answer is a plan or None. An exception would stop the job's recovery."""
        for kind, each in each_kind(self.roles):
            _answer(kind, lambda each=each: level.recover(each.failure, each.view))  # type: ignore[misc]

    def test_it_answers_in_every_situation(self, level: Level) -> None:
        """The states of the ranks and the earlier attempts vary. The answer is a plan or None, and the level never
        raises.
        """
        self._for_all(lambda at: _answer(describe(at.failure), lambda: level.recover(at.failure, at.view)))

    def test_unknown_failures_are_passed_on(self, level: Level) -> None:
        """A failure of an unknown rank or node belongs to the next level, or to a level that restarts the whole job."""

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            if at.unknown and set(plan.restart) != {r.ref for r in at.view.ranks}:
                yield "has a plan for it, though the job does not have whoever failed; return None"

        self._find(level, problems)

    def test_it_judges_every_kind_of_failure(self, level: Level) -> None:
        """`diagnose`, if the level has it, returns a verdict, or None if it cannot tell."""
        if not level.diagnoses:
            pytest.skip("it has no hook diagnose()")
        for kind, each in each_kind(self.roles):
            _answer(kind, lambda each=each: level.diagnose(each.failure, each.view), "diagnose")  # type: ignore[misc]
        self._for_all(lambda at: _answer(describe(at.failure), lambda: level.diagnose(at.failure, at.view), "diagnose"))

    def test_it_answers_in_time_for_ten_thousand_ranks(self, level: Level) -> None:
        """The whole job waits for the answer."""
        ranks = tuple(
            RankView(role, rank, f"node-{rank // 8}", "running", 3, 0, 2)
            for role in ("actor", "rollout")
            for rank in range(5000)
        )
        nodes = tuple(NodeState(f"node-{number}", f"node-{number}/0", number != 7) for number in range(625))
        view = JobView("large", 1, 2, ranks, ("actor",), ("actor",), nodes, 1, now=NOW)
        for failure in (Failure("signal", "rollout", 60, signal=9), Failure("node_lost", node="node-7")):
            _answer("a job of 10,000 ranks", lambda failure=failure: level.recover(failure, view))  # type: ignore[misc]

    # --------------------------------------------------------------------------------------------------------- plans

    def test_it_restarts_ranks_of_the_job(self, level: Level) -> None:
        """A plan restarts at least one rank, each rank once, and only ranks of the job."""

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            ranks = {r.ref for r in at.view.ranks}
            if not plan.restart:
                yield "has a plan that restarts nobody; return None"
            if len(set(plan.restart)) != len(plan.restart):
                yield "restarts a rank twice"
            for rank in plan.restart:
                if rank not in ranks and not at.unknown:
                    yield f"restarts {RankRef(*rank)}, which the job does not have"

        self._find(level, problems)

    def test_it_restarts_all_that_the_failure_takes(self, level: Level) -> None:
        """`JobView.lost_with` lists the failed rank and its group; for an agent or a node, all its ranks."""

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            lost = () if at.unknown else at.view.lost_with(at.failure)
            for rank in lost:
                if rank not in plan.restart and rank not in _mates(at.view, plan):
                    yield f"does not restart {rank}, which the failure takes down; see JobView.lost_with"

        self._find(level, problems)

    def test_it_restarts_whole_groups(self, level: Level) -> None:
        """The ranks of a collective role restart together."""

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            for role, rank in _mates(at.view, plan):
                if (role, rank) not in plan.restart:
                    yield f"restarts a part of the collective role {role}, without rank {rank}; see JobView.group"

        self._find(level, problems)

    def test_it_avoids_nodes_that_the_job_knows(self, level: Level) -> None:
        """The engine would silently ignore an unknown name."""

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            known = {node.node for node in at.view.nodes} | {r.node for r in at.view.ranks}
            away = (*plan.avoid, *plan.ban)
            yield from (f"avoids {node!r}, which the job does not know" for node in away if node not in known)
            yield from (f"bans {node!r} for {s} s" for node, s in plan.ban.items() if not s > 0)

        self._find(level, problems)

    def test_ranks_on_an_avoided_node_restart(self, level: Level) -> None:
        """These ranks get new places. The engine cannot execute a plan that leaves them running."""

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            for r in at.view.ranks:
                if r.node in (*plan.avoid, *plan.ban) and r.ref not in plan.restart:
                    yield f"avoids {r.node}, and does not restart {r.ref}, which is there"

        self._find(level, problems)

    def test_its_plans_are_within_its_scope(self, level: Level) -> None:
        """process: ranks stay and restore from memory; node: ranks restore from memory; job: anything. The ladder
        relies on it.
        """
        scope = level.instance.scope

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            if scope == "process" and (away := (*plan.avoid, *plan.ban)):
                yield f"has scope process, and moves ranks away from {', '.join(away)}"
            if scope != "job" and plan.source == "disk":
                yield f"has scope {scope}, and restarts from disk, which means every rank of the job"

        self._find(level, problems)

    def test_after_a_restart_from_disk_every_rank_restarts(self, level: Level) -> None:
        """The newest persisted snapshot is older than the states in memory, and all ranks must agree."""

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            if plan.source == "disk":
                left = [r for r in at.view.ranks if r.ref not in plan.restart]
                yield from (f"restarts from disk, and leaves {r.ref} running" for r in left)

        self._find(level, problems)

    def test_it_resizes_within_limits(self, level: Level) -> None:
        """A plan resizes only from disk, only roles that have limits (`JobView.ranges`), and stays within them."""

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            if plan.resize and plan.source != "disk":
                yield f"resizes {', '.join(plan.resize)}, and does not restart from disk"
            for role, size in plan.resize.items():
                least, most = at.view.ranges.get(role, (0, -1))
                if not least <= size <= most:
                    yield f"gives {role} {size} ranks, which it may not have; see JobView.ranges"

        self._find(level, problems)

    def test_it_gives_no_more_than_a_role_may_have(self, level: Level) -> None:
        """`resources` are per rank, at most `JobView.most`. A resource without a limit stays within the cluster's
        total.
        """

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            for role, amounts in plan.resources.items():
                has, most = at.view.resources.get(role, {}), at.view.most.get(role, {})
                for name, amount in amounts.items():
                    if not 0 <= amount <= most.get(name, has.get(name, 0.0)):
                        yield f"gives a rank of {role} {name} {amount:g}, which it may not have; see JobView.most"

        self._find(level, problems)

    def test_it_waits_for_a_finite_time(self, level: Level) -> None:
        """`wait_s` and `delay_s` are finite numbers of seconds from 0 on. The job may stand still meanwhile."""

        def problems(at: Trouble, plan: RecoveryPlan) -> Iterable[str]:
            if not (isfinite(plan.wait_s) and plan.wait_s >= 0):
                yield f"waits for {plan.wait_s} s"
            if not (isfinite(plan.delay_s) and plan.delay_s >= 0):
                yield f"asks for a delay of {plan.delay_s} s"

        self._find(level, problems)

    def test_plans_have_a_reason(self, level: Level) -> None:
        """A user who finds the job restarted reads the reason."""
        self._find(level, lambda at, plan: () if plan.reason.strip() else ("gives no reason",))

    def test_the_end_of_a_job_has_a_reason(self, level: Level) -> None:
        """The failed job prints `GiveUp.reason` and nothing else about the level's decision."""

        def check(at: Trouble) -> None:
            answer = level.answer(at.failure, at.view)
            if isinstance(answer, GiveUp):
                assert answer.reason.strip(), f"{describe(at.failure)}: it ends the job and gives no reason"

        self._for_all(check)

    # -------------------------------------------------------------------------------------------------------- purity

    def test_the_same_failure_has_the_same_answer(self, level: Level) -> None:
        """A restarted master asks again and must get the same answer."""
        one, other = level.renewed(), level.renewed()

        def check(at: Trouble) -> None:
            same = one.answers(at.failure, at.view) == other.answers(at.failure, at.view)
            assert same, f"{describe(at.failure)}: two instances answer differently; no randomness, no clock: view.now"

        self._for_all(check)
        few = list(self.pool())[:20]
        first = [one.answers(at.failure, at.view) for at in few]
        for seconds in OFFSETS:
            with shifted(seconds, type(level.instance).__module__):
                for at, answer in zip(few, first, strict=True):
                    same = other.answers(at.failure, at.view) == answer
                    assert same, f"{describe(at.failure)}: {seconds} s later it answers differently; use view.now"

    def test_it_keeps_nothing_from_failure_to_failure(self, level: Level) -> None:
        """The history is in `JobView.failures` and `JobView.attempts`, also after the master's restart."""
        used = level.renewed()
        troubles = list(self.pool())
        answers = [level.answers(at.failure, at.view) for at in troubles]
        for at, first in zip(reversed(troubles), reversed(answers), strict=True):
            same = used.answers(at.failure, at.view) == first
            assert same, f"{describe(at.failure)}: the answer depends on what it has been asked before"

    def test_its_arguments_stay_as_they_are(self, level: Level) -> None:
        """All levels get the same failure and view, whose dictionaries are mutable."""

        def check(at: Trouble) -> None:
            before = msgspec.json.encode(at)
            level.answers(at.failure, at.view)
            assert msgspec.json.encode(at) == before, f"{describe(at.failure)}: it writes into its arguments"

        self._for_all(check)

    def test_another_process_has_the_same_answer(self, level: Level, subject: Subject) -> None:
        """The other process has another hash seed and no memory, like a master after a restart."""
        few = list(self.pool())[:50]
        for _ in range(2):
            asked = [level.answers(at.failure, at.view) for at in few]
        mine, payload = msgspec.json.decode(msgspec.json.encode(asked)), msgspec.json.encode(few)
        one, other = (
            msgspec.json.decode(ask_elsewhere(recover_there, subject, payload, hash_seed=seed)) for seed in (1, 2)
        )
        for at, here, there, used in zip(few, one, other, mine, strict=True):
            assert here == there, f"{describe(at.failure)}: the answer depends on the order of hashes: sort your sets"
            assert here == used, f"{describe(at.failure)}: a process that was asked before answers differently"

    def _for_all(self, check: Callable[[Trouble], None]) -> None:
        self.pool().check(check, simplify=self.simplify)

    def _find(self, level: Level, problems: Callable[[Trouble, RecoveryPlan], Iterable[str]]) -> None:
        """Fail with the first problem of a plan."""

        def check(at: Trouble) -> None:
            try:
                plan = level.recover(at.failure, at.view)
            except RolemeshError:
                return
            found = next(iter(problems(at, plan)), None) if plan is not None else None
            assert found is None, f"{describe(at.failure)} [{at.failure.cause}]: it {found}"

        self._for_all(check)


def _answer(what: str, ask: Callable[[], object], hook: str = "recover") -> None:
    try:
        ask()
    except PluginError as error:
        raise AssertionError(f"{what}: {error.what}") from error
    except RolemeshError as error:
        raise AssertionError(f"{what}: {hook}() raises {error.what!r}; return None to pass it on") from error


def _mates(view: JobView, plan: RecoveryPlan) -> dict[tuple[str, int], None]:
    """Return all ranks of the collective roles of which a plan restarts a rank."""
    return {mate: None for role, rank in plan.restart if role in view.collective for mate in view.group(role, rank)}
