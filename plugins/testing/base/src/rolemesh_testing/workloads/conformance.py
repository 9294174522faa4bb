"""Conformance of a workload: the kit runs ranks in processes, kills and restores them, and compares the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from rolemesh.api.partition import Broadcast, Split
from rolemesh.api.service import ServiceSpec
from rolemesh.api.workload import OperatorSpec, Workload
from rolemesh.errors import OptionsError
from rolemesh.graph.call_site import SETTINGS
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_testing.conformance import HEAVY, PluginConformance, modules_after, needed
from rolemesh_testing.workloads.journey import Kill, boundaries, differences
from rolemesh_testing.workloads.listed import listed
from rolemesh_testing.workloads.ranks import Ranks, Stage, Stages, Subject
from rolemesh_testing.workloads.travelled import Travelled, cannot_be_set_up

__all__ = ["WorkloadConformance"]

NEVER = 1 << 30
"""Steps between snapshots that lead to no snapshot within a test."""


class WorkloadConformance(PluginConformance):
    """Subclass it with `plugin`, `options` and `step`; see `rolemesh_testing`.

    Ranks are forked from a process with the workload's `preload` and `env`, as in a job. `step` calls operators with
    whole values. The kit splits and joins them as a job does between roles.
    """

    kind = "workloads"
    steps: ClassVar[int] = 3
    world_sizes: ClassVar[tuple[int, ...]] = (1, 2, 3, 5)
    """World sizes to test if `Workload.check` accepts them. Tests that need only one use the first."""
    long_steps: ClassVar[int] = 100
    """Number of steps of the long run, for which `step` must work, too."""
    long_s: ClassVar[float] = 10.0
    """Seconds after which the long run ends earlier."""
    long_kills: ClassVar[int] = 4
    """Kills of a rank in the long run, at drawn places."""
    seed: ClassVar[int] = 7
    plugins: ClassVar[Mapping[str, Sequence[Mapping[str, Any]]]] = {}
    """The job's ``plugins``, as in a job file: ``{"sources": [{"use": "files", "options": {...}}]}``."""

    def step(self, role: Any, step: int) -> None:
        """Call the role as a flow does in step `step`: ``batch = role.next()``, ``role.train(batch=batch)``.

        Call services as operators of other roles do: ``role.call_service("evaluate", code)``.
        """
        raise NotImplementedError

    def answer(self, role: str, method: str, *arguments: Any, session: str) -> Any:
        """Answer a call of the service `method` of another role (`RankContext.call`).

        `session` is the call's session, "" for none. The same call must always get the same answer, since a restarted
        rank calls again.
        """
        what = f"an operator calls the service {role}.{method}, and the test class does not say what it answers"
        raise AssertionError(f"{what}; define answer(self, role, method, *arguments, session)")

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def subject(self, cls: type[Workload], record: PluginRecord, base: Path, request: pytest.FixtureRequest) -> Subject:
        """The workload and its options."""
        plugins = needed(request, "what it lists under plugins is not found", lambda: listed(self.plugins, base))
        return Subject(cls, record.target, dict(self.options), base, plugins)

    @pytest.fixture
    def stage(self, rolemesh_stages: Stages, cls: type[Workload], request: pytest.FixtureRequest) -> Stage:
        """The process from which ranks are forked."""
        return needed(request, "its modules in preload cannot be imported", lambda: rolemesh_stages.get(cls))

    @pytest.fixture
    def operators(self, cls: type[Workload], checked_options: BaseModel) -> Mapping[str, OperatorSpec]:
        """The operators of the workload with these options."""
        return cls.operators(checked_options)

    @pytest.fixture
    def services(self, cls: type[Workload], checked_options: BaseModel) -> Mapping[str, ServiceSpec]:
        """The services of the workload with these options."""
        return cls.services(checked_options)

    @pytest.fixture
    def stateful(self, cls: type[Workload], checked_options: BaseModel) -> bool:
        """True if ranks keep state."""
        return cls.stateful(checked_options)

    @pytest.fixture
    def sizes(self, cls: type[Workload], checked_options: BaseModel, request: pytest.FixtureRequest) -> tuple[int, ...]:
        """Those of `world_sizes` that the workload accepts with these options."""
        return needed(request, "it accepts none of the world sizes", lambda: self._accepted(cls, checked_options))

    def _accepted(self, cls: type[Workload], options: BaseModel) -> tuple[int, ...]:
        refusals = {size: _refusal(cls, options, size) for size in self.world_sizes}
        accepted = tuple(size for size, refusal in refusals.items() if refusal is None)
        assert accepted, f"check() accepts none of the world sizes {self.world_sizes}: {refusals[self.world_sizes[0]]}"
        return accepted

    @pytest.fixture
    def travelled(
        self,
        rolemesh_stages: Stages,
        subject: Subject,
        operators: Mapping[str, OperatorSpec],
        services: Mapping[str, ServiceSpec],
        stateful: bool,
        checked_options: BaseModel,
        request: pytest.FixtureRequest,
    ) -> Travelled:
        """Makes journeys. A journey is some steps on fresh ranks."""
        if type(self).step is WorkloadConformance.step:
            pytest.skip("the test class has no step(), so nothing is known of how the operators are used")
        repeats = subject.cls.repeats(checked_options)
        return Travelled(self, request, rolemesh_stages, subject, operators, services, stateful, repeats)

    # --------------------------------------------------------------------------------------------------- declaration

    def test_its_attributes_are_those_that_the_kernel_reads(self, cls: type[Workload]) -> None:
        """`group`, `deterministic`, `preload` and `env` have their declared types."""
        assert cls.group in ("independent", "collective")
        assert isinstance(cls.deterministic, bool)
        assert not isinstance(cls.preload, str), f"preload is a sequence of modules: ({cls.preload!r},)"
        assert all(isinstance(module, str) for module in cls.preload)
        assert all(isinstance(text, str) for item in cls.env.items() for text in item)

    def test_it_has_operators_that_a_flow_can_call(
        self, operators: Mapping[str, OperatorSpec], services: Mapping[str, ServiceSpec]
    ) -> None:
        """It has at least one operator, or a service for other roles. Each is a method with parameters that a flow may
        use.
        """
        assert operators or services, "no method is marked with @operator or @service"
        for name, spec in operators.items():
            assert name.isidentifier(), f"{name!r} is not a name that a flow can call"
            assert not name.startswith("_"), f"{name!r} is not a name that a flow can call"
            taken = set(SETTINGS) & spec.inputs.keys()
            assert not taken, f"{name}: the parameters {sorted(taken)} belong to the flow's own arguments"

    def test_every_operator_is_described(self, operators: Mapping[str, OperatorSpec]) -> None:
        """The author of a flow sees only names, partitions and docstrings."""
        nameless = [name for name, spec in operators.items() if not spec.doc]
        assert not nameless, f"no docstring: {', '.join(nameless)}"

    def test_its_operators_are_always_the_same(
        self,
        cls: type[Workload],
        checked_options: BaseModel,
        operators: Mapping[str, OperatorSpec],
        services: Mapping[str, ServiceSpec],
    ) -> None:
        """The driver and every rank ask for operators and services, and must get the same ones."""
        assert dict(cls.operators(checked_options)) == dict(operators)
        assert dict(cls.services(checked_options)) == dict(services)

    def test_checking_the_options_is_light(self, record: PluginRecord, base: Path, sizes: tuple[int, ...]) -> None:
        """`check` and `operators` run in the driver before the job starts."""
        module, _, name = record.target.partition(":")
        code = (
            f"import importlib, json; cls = importlib.import_module({module!r})\n"
            f"for part in {name.split('.')!r}: cls = getattr(cls, part)\n"
            f"options = cls.Options.model_validate({self.options!r}, context={{'base': {str(base)!r}}})\n"
            f"cls.check(options, {sizes[0]}); cls.operators(options); print(json.dumps(sorted(sys.modules)))"
        )
        heavy = set(HEAVY) & modules_after(code)
        assert not heavy, f"check() and operators() import {', '.join(sorted(heavy))}; import them in setup()"

    def test_preloaded_modules_survive_a_fork(self, stage: Stage) -> None:
        """A preload that starts threads, or CUDA, would hang or break the ranks that are forked after it."""
        assert not stage.started.cuda, "a preload has initialised CUDA, which does not survive a fork"
        extra = stage.started.threads
        assert not extra, f"a preload has started the threads {', '.join(extra)}, which are not there after a fork"

    # ---------------------------------------------------------------------------------------------------------- life

    def test_set_up_and_torn_down_twice(
        self, stage: Stage, subject: Subject, sizes: tuple[int, ...], request: pytest.FixtureRequest
    ) -> None:
        """Both happen in one process, without an operator between them. The first life must not disturb the second."""
        size = 1 if 1 in sizes else sizes[0]
        with needed(request, cannot_be_set_up(size), lambda: Ranks(stage, subject, size)) as ranks:
            ranks.tear_down()
            if not ranks.collective:
                ranks.set_up(range(ranks.world_size))
                ranks.tear_down()

    def test_nothing_is_left_after_teardown(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """The rank leaves no process, and no thread that keeps its process from ending."""
        with travelled.ranks(sizes[0]) as ranks:
            travelled.go(ranks, range(1), stateful=False)
            left = ranks.tear_down()
        for rank, torn in left.items():
            assert not torn.children, f"rank {rank} leaves processes behind: {', '.join(torn.children)}"
            assert not torn.threads, f"rank {rank} leaves threads behind: {', '.join(torn.threads)}"

    def test_a_kill_during_a_write_does_not_disturb_the_next_writer(
        self, travelled: Travelled, sizes: tuple[int, ...]
    ) -> None:
        """The killed rank had no chance to tear down. Its successor uses the same node and folders."""
        with travelled.ranks(sizes[0]) as ranks:
            travelled.go(ranks, range(1), stateful=False)
            ranks.kill(0)
            ranks.tear_down()

    # ------------------------------------------------------------------------------------------------ values, ranks

    def test_its_operators_work_at_every_world_size(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """Odd sizes are included: then parts are uneven, and some ranks get nothing."""
        for size in sizes:
            travelled(size)

    def test_every_operator_is_called(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """`step` calls every operator, so that all are tested. If it calls a service, it calls every one."""
        called = {each.operator for each in travelled(sizes[0]).calls}
        idle = travelled.operators.keys() - called
        if called & travelled.services.keys():
            idle |= travelled.services.keys() - called
        assert not idle, f"step() never calls {', '.join(sorted(idle))}"
        if not called:
            pytest.skip('the test class calls nothing in step(); services are called by role.call_service("name", ...)')

    def test_the_world_size_does_not_change_results(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """The results of operators, joined over the ranks, do not depend on the number of ranks, also in a long run."""
        _deterministic(travelled.cls)
        if len(sizes) == 1:
            pytest.skip(f"it accepts one world size only, {sizes[0]}")
        first = travelled(sizes[0]).calls
        pairs = [(size, zip(first, travelled(size).calls, strict=True)) for size in sizes[1:]]
        long = travelled.long(sizes[0]).whole.calls
        pairs.append((sizes[1], zip(long, travelled.begin_of_long(sizes[1]).calls, strict=False)))
        for size, calls in pairs:
            for one, other in calls:
                assert one.value == other.value, (
                    f"{one} returns something else on {size} ranks than on {sizes[0]}; seed by row and step "
                    "(ctx.rng('row', index)), not by rank"
                )

    def test_results_of_ranks_lie_as_declared(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """`Broadcast`: the value is the same on every rank."""
        for size in sizes[1:] or sizes:
            for called in (each for each in travelled(size).calls if not each.service):
                if isinstance(travelled.operators[called.operator].returns, Broadcast):
                    same = len(set(called.fingerprints.values())) == 1
                    assert same, f"{called} declares returns=Broadcast(), and ranks return different values"

    def test_inputs_are_not_written_to(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """Inputs are views of shared memory, which other consumers read. So are a service's arguments."""
        for called in (*travelled(sizes[0]).calls, *travelled.long(sizes[0]).whole.calls):
            written = {name for names in called.written.values() for name in names}
            assert not written, f"{called} writes into its input {', '.join(sorted(written))}; clone it first"

    def test_the_cut_into_chunks_does_not_change_results(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """A streaming operator gets chunks of any size, as their producer yields them."""
        _deterministic(travelled.cls)
        streaming = [spec for spec in travelled.operators.values() if spec.streaming]
        if not any(isinstance(partition, Split) for spec in streaming for partition in spec.inputs.values()):
            pytest.skip("no operator takes a stream of rows")
        whole = travelled(sizes[0])
        for rows in (1, 3):
            cut = travelled(sizes[0], chunk_rows=rows)
            found = differences(cut, whole)
            assert not found, f"in chunks of {rows} rows: {found[0]}"

    # ---------------------------------------------------------------------------------------------------- determinism

    def test_the_same_seed_gives_the_same_results(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """`deterministic` promises the same bits, in other processes and with another hash seed."""
        _deterministic(travelled.cls)
        for size in sizes[:2]:
            found = differences(travelled(size), travelled.again(size, stage=travelled.other_stage()))
            assert not found, found[0]

    def test_its_generation_does_not_change_results(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """The state may not depend on the number of the rank's restarts."""
        _deterministic(travelled.cls)
        found = differences(travelled(sizes[0]), travelled.again(sizes[0], generation=3))
        assert not found, found[0]

    # ---------------------------------------------------------------------------------------------------------- state

    def test_a_snapshot_changes_nothing(self, travelled: Travelled, sizes: tuple[int, ...], stateful: bool) -> None:
        """A snapshot after every step, or none, leads to the same end. Two snapshots in a row are equal."""
        _stateful(stateful)
        _deterministic(travelled.cls)
        found = differences(travelled(sizes[0]), travelled(sizes[0], every=NEVER))
        assert not found, found[0]
        with travelled.ranks(sizes[0]) as ranks:
            travelled.go(ranks, range(1), stateful=True)
            first, second = ranks.snapshot(), ranks.snapshot()
        assert [t.digest for t in first.values()] == [t.digest for t in second.values()]

    def test_its_state_has_the_same_names_from_the_start(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """The snapshot right after `setup` is the pattern for restoring a state at another world size."""
        _stateful(travelled.stateful)
        with travelled.ranks(sizes[0]) as ranks:
            before = ranks.snapshot()
            after = travelled.go(ranks, range(1), stateful=True).states
        for steps, states in (("a step", after), ("many steps", travelled.long(sizes[0]).whole.states)):
            for rank, taken in before.items():
                assert (taken.state is None) == (states[rank].state is None), f"rank {rank} has a state only at times"
                missing = taken.entries.keys() ^ states[rank].entries.keys()
                assert not missing, f"{', '.join(sorted(missing))} is in the state only before or only after {steps}"

    def test_it_continues_from_a_snapshot_without_a_difference(
        self, travelled: Travelled, sizes: tuple[int, ...]
    ) -> None:
        """The test runs half of the steps, takes a snapshot, calls `restore` in new processes, and runs the other half.

        The calls and the end are those of an undisturbed run.
        """
        _stateful(travelled.stateful)
        half = max(1, self.steps // 2)
        for size in sizes[:2]:
            whole = travelled(size)
            begun = travelled(size, steps=range(half))
            resumed = travelled.again(size, steps=range(half, self.steps), begun=begun)
            if travelled.cls.deterministic:
                found = differences(whole, resumed, calls_from=len(begun.calls))
                assert not found, f"{size} ranks, resumed at step {half}: {found[0]}"

    def test_a_state_that_was_restored_is_the_state(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """A snapshot right after `restore` has the same digest."""
        _stateful(travelled.stateful)
        begun = travelled(sizes[0], steps=range(1))
        again = travelled.again(sizes[0], steps=range(0), begun=begun)
        for rank, taken in begun.states.items():
            same = again.states[rank].digest == taken.digest
            assert same, f"rank {rank}: what snapshot() gives after restore() is not what was restored"

    def test_a_kill_at_every_operator_boundary_changes_nothing(
        self, travelled: Travelled, sizes: tuple[int, ...]
    ) -> None:
        """Ranks get SIGKILL before each call and after the last one. A new process restores the snapshot and repeats
        the inputs.

        No rank is killed in a session: the next process does not know it, and the caller gets an error.
        """
        for size in sizes[:2]:
            undisturbed = travelled(size, every=2)
            for call in boundaries(undisturbed.calls):
                kill = Kill(call, call % size)
                disturbed = travelled.again(size, every=2, kills=[kill])
                if travelled.cls.deterministic:
                    found = differences(undisturbed, disturbed)
                    assert not found, f"{size} ranks, rank {kill.rank} killed before call {call}: {found[0]}"

    def test_kills_at_drawn_places_of_a_long_run_change_nothing(
        self, travelled: Travelled, sizes: tuple[int, ...]
    ) -> None:
        """A fault that shows only now and then, or late, does not show in `steps` steps."""
        run = travelled.long(sizes[0])
        if travelled.cls.deterministic:
            found = differences(run.whole, run.disturbed)
            assert not found, f"in a long run with {self.long_kills} kills and another hash seed: {found[0]}"
            for here, there in zip(run.restarted.calls, run.whole.calls, strict=False):
                same = here.fingerprints == there.fingerprints
                assert same, f"with a restart before each step, {here} returns something else"
            for step in run.restarted.digests.keys() & run.whole.digests.keys():
                same = run.restarted.digests[step] == run.whole.digests[step]
                assert same, f"with a restart before each step, the state before step {step} differs"

    def test_a_killed_rank_leaves_no_process(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """SIGKILL gives no time for `teardown`. Processes that the rank has started must see its end themselves."""
        left = travelled.long(sizes[0]).left
        assert not left, (
            f"a rank was killed, and {left[0]!r} ran on; let the process end with the rank, by prctl(PR_SET_PDEATHSIG) "
            "or at the end of a pipe"
        )

    # ------------------------------------------------------------------------------------------------------- services

    def test_any_rank_answers_a_service_alike(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """If the rank dies, another rank or its successor repeats the call. A restarted caller repeats its calls.

        Calls of a session are not repeated: they belong to one life of a rank.
        """
        _deterministic(travelled.cls)
        if not travelled.services:
            pytest.skip("it has no services")
        with travelled.ranks(max(sizes[:2])) as ranks:
            calls = travelled.go(ranks, range(1), stateful=False).calls
            for called in (each for each in calls if each.service and not each.session):
                for rank, reply in called.again(ranks, range(ranks.world_size)).items():
                    same = reply.fingerprint in called.fingerprints.values()
                    assert same, f"{called}: rank {rank} answers something else when it is called again"

    # ---------------------------------------------------------------------------------------------------------- turns

    def test_giving_memory_back_changes_nothing(self, travelled: Travelled, sizes: tuple[int, ...]) -> None:
        """Roles that share devices call `offload` and `onload` between steps."""
        size = 1 if 1 in sizes else sizes[0]
        with travelled.ranks(size, turns=True) as ranks:

            def turn() -> None:
                ranks.offload()
                ranks.onload()

            turned = travelled.go(ranks, range(self.steps), every=NEVER, between=turn)
            ranks.offload()
            ranks.tear_down()
        if travelled.cls.deterministic:
            found = differences(travelled(size, every=NEVER), turned)
            assert not found, found[0]

    def check_options(self, cls: type[Any], options: BaseModel, base: Path) -> None:
        """The test tries `Workload.check` with every world size of the class."""
        for size in self.world_sizes:
            cls.check(options, size)


def _refusal(cls: type[Workload], options: BaseModel, size: int) -> OptionsError | None:
    try:
        cls.check(options, size)
    except OptionsError as error:
        return error
    return None


def _deterministic(cls: type[Workload]) -> None:
    if not cls.deterministic:
        pytest.skip("it does not say deterministic = True")


def _stateful(stateful: bool) -> None:
    if not stateful:
        pytest.skip("its ranks keep no state")
