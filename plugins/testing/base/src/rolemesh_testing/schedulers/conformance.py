"""Conformance of a placement strategy: its plans are possible, deterministic, and keep earlier decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import PluginError
from rolemesh.placement import Constraint, PlacementPlan, PlacementRequest
from rolemesh.placement.validation import forbidden, misplaced, overcommitted, revive, undone
from rolemesh.plugins.contract import hooks_of
from rolemesh_durable.api.testing import stranded_in
from rolemesh_testing.clock import OFFSETS, shifted
from rolemesh_testing.schedulers.losses import LossConformance
from rolemesh_testing.schedulers.planner import Case, Planner, Refused, plan_there
from rolemesh_testing.schedulers.situations import Situation, answered, multiplied, planned
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere

__all__ = ["SchedulerConformance"]


class SchedulerConformance(LossConformance):
    """Subclass it with `plugin` and `options`. Set `roles` and `labels` if the options name some.

    A strategy may refuse a request with an error that has a remedy, but it must plan `asked`.
    """

    # ------------------------------------------------------------------------------------------------------- answers

    def test_it_has_the_hook_that_places(self, cls: type[object]) -> None:
        """The plugin has ``place``, marked with `rolemesh.hookimpl`. Without the mark the kernel never calls it."""
        assert "place" in hooks_of(cls), "no method place is marked with @hookimpl, so it is never called"

    def test_it_answers_with_a_plan_or_refuses(self, planner: Planner) -> None:
        """The strategy returns a plan, passes with None, or raises an error for users. Other exceptions are bugs."""

        def check(at: Situation) -> None:
            try:
                found = planner.place(at.request, at.cluster, at.before)
            except Refused:
                return
            assert found is None or isinstance(found, PlacementPlan), f"place() returns {found!r}, which is no plan"

        self.for_all(check)

    def test_it_answers_on_every_kind_of_cluster(
        self, planner: Planner, asked: PlacementRequest, shapes: Mapping[str, ClusterView]
    ) -> None:
        """The cluster may have no node, nothing free, no GPU, no label, or a label that only one node has."""
        for shape, cluster in shapes.items():
            for request in multiplied(asked, (1, 4)):
                try:
                    planner.place(request, cluster)
                except Refused:
                    pass
                except PluginError as error:
                    raise AssertionError(f"on a cluster with {shape}: {error.what}") from error

    def test_a_refusal_says_what_to_do(
        self, planner: Planner, asked: PlacementRequest, shapes: Mapping[str, ClusterView]
    ) -> None:
        """The error has a `remedy`. The author of the job file has no other hint."""

        def check(at: Situation) -> None:
            said = None
            try:
                planner.place(at.request, at.cluster, at.before)
            except Refused as refused:
                said = refused.error
            except PluginError:
                pass
            assert said is None or said.remedy, f"it refuses without a remedy: {said.what}"

        self.for_all(check)
        for cluster in shapes.values():
            for missing in asked.roles:
                check(Situation(PlacementRequest(tuple(role for role in asked.roles if role != missing)), cluster))

    def test_all_ranks_have_a_place_if_there_is_room(
        self, planner: Planner, asked: PlacementRequest, roomy: ClusterView
    ) -> None:
        """The strategy places all ranks, or `pack` places them after it. Replace the fixture `asked` if this is
        impossible.
        """
        for request in multiplied(asked, (1, 2, 3)):
            try:
                planner.place(request, roomy)
            except Refused as refused:
                raise AssertionError(
                    f"it refuses what it is asked, {_told(request)}: {refused.error}; the fixtures `asked` and `roomy` "
                    "say what it must be able to plan"
                ) from refused
            plan = planned(planner, request, roomy)
            if plan is not None:
                without = {f"{u.ref}: {u.reason}": None for u in plan.unplaced}
                assert not without, f"there is room for {_told(request)}, but no place for {next(iter(without))}"

    def test_a_thousand_nodes_are_planned_in_time(self, planner: Planner, asked: PlacementRequest) -> None:
        """The plan is ready within the hook's time limit. A strategy that tries all combinations is too slow."""
        cluster = ClusterView(tuple(self._node(number, cpu=4.0, gpu=2) for number in range(1000)))
        factor = 2000 // sum(role.world_size for role in asked.roles)
        (request, *_) = multiplied(asked, (factor,))
        try:
            planner.place(request, cluster)
        except Refused:
            pass
        except PluginError as error:
            raise AssertionError(f"{_told(request)} on 1,000 nodes: {error.what}") from error

    # --------------------------------------------------------------------------------------------------------- plans

    def test_plans_stay_within_capacity(self, planner: Planner) -> None:
        """Plans respect cores, each device, shares of a device, and every other resource, beside what is already in
        use.
        """
        self._find(planner, lambda at, plan: overcommitted(at.cluster, plan))

    def test_ranks_have_the_resources_that_they_request(self, planner: Planner) -> None:
        """A rank's slot has at least the requested resources, and the rank a share of it between 0 and 1."""

        def problems(at: Situation, plan: PlacementPlan) -> list[str]:
            before = set(at.before.assignments)
            needs = {role.role: role.needs for role in at.request.roles}
            found = []
            for a in plan.assignments:
                if a in before:
                    continue
                slot = plan.slots[a.slot]
                has = {"cpu": slot.cpu, "gpu": slot.gpu, **slot.custom}
                found += [
                    f"put {a.ref}, which asks for {name} {need:g}, on a slot with {has.get(name, 0.0):g}"
                    for name, need in needs[a.role].items()
                    if has.get(name, 0.0) < need - 1e-6
                ]
                if not 0 < a.share <= 1:
                    found.append(f"gave {a.ref} a share of {a.share:g} of its slot")
            return found

        self._find(planner, problems)

    def test_no_rank_has_two_places(self, planner: Planner) -> None:
        """A plan also has only ranks, roles and slots of the job."""

        def check(at: Situation) -> None:
            plan = answered(planner, at)
            found = next(misplaced(at.request, plan), None) if plan is not None else None
            assert found is None, f"for {_told(at.request)}, it {found}"

        self.for_all(check)

    def test_every_slot_has_a_rank(self, planner: Planner) -> None:
        """The plan reserves a slot's resources on its node, even if no rank uses the slot."""

        def problems(at: Situation, plan: PlacementPlan) -> list[str]:
            taken = {a.slot for a in plan.assignments}
            return [
                f"made a slot on {s.node} for nobody" for s in plan.slots[len(at.before.slots) :] if s.id not in taken
            ]

        self._find(planner, problems)

    def test_ranks_without_a_place_have_a_reason(self, planner: Planner) -> None:
        """`Unplaced` names a rank of the job without a place, and the reason."""

        def problems(at: Situation, plan: PlacementPlan) -> list[str]:
            ranks = {(role.role, rank) for role in at.request.roles for rank in range(role.world_size)}
            given_up = [u for u in plan.unplaced if u not in at.before.unplaced]
            found = [f"said that {u.ref} has no place, and no reason" for u in given_up if not u.reason.strip()]
            for u in given_up:
                if u.ref not in ranks:
                    found.append(f"said that {u.ref} has no place, which is no rank of the job")
                elif u.ref in plan.placed():
                    found.append(f"placed {u.ref}, and said that it has no place")
            return found

        self._find(planner, problems)

    def test_places_have_a_reason(self, planner: Planner) -> None:
        """`rolemesh plan --explain` prints `Assignment.rule`, "who: why", for each rank."""

        def problems(at: Situation, plan: PlacementPlan) -> list[str]:
            before = set(at.before.assignments)
            return [f"gave {a.ref} no rule" for a in plan.assignments if a not in before and not a.rule.strip()]

        self._find(planner, problems)

    def test_peers_are_ranks_of_the_job(self, planner: Planner) -> None:
        """A rank finds its peers in `RankContext.peers`, and asks for their addresses."""

        def problems(at: Situation, plan: PlacementPlan) -> list[str]:
            ranks = {(role.role, rank) for role in at.request.roles for rank in range(role.world_size)}
            return [
                f"gave {a.ref} the peer {'/'.join(map(str, peer))}, which is no rank of the job"
                for a in plan.assignments
                for peer in a.peers
                if tuple(peer) not in ranks
            ]

        self._find(planner, problems)

    def test_earlier_decisions_stay(self, planner: Planner) -> None:
        """The plan keeps slots, places and constraints of earlier strategies, and adds its own after them."""
        self._find(planner, lambda at, plan: undone(revive(at.before), revive(plan)))

    def test_constraints_hold(self, planner: Planner) -> None:
        """The plan obeys the constraints of earlier strategies and its own.

        If its own constraints contradict earlier decisions, the kernel names both strategies.
        """

        def problems(at: Situation, plan: PlacementPlan) -> Iterable[str]:
            for found in forbidden(at.request, at.cluster, at.before, plan):
                if not found.startswith("demands"):
                    yield found

        self._find(planner, problems)

    def test_its_own_constraints_can_be_described_and_encoded(self, planner: Planner) -> None:
        """A constraint is data with a tag of its own, and describes its demand in words. It always answers the same."""

        def problems(at: Situation, plan: PlacementPlan) -> Iterable[str]:
            for each in plan.constraints[len(at.before.constraints) :]:
                cls, told = type(each), each.told()
                if not (isinstance(told, str) and told.strip()):
                    yield f"demands {each}, of which told() says {told!r}"
                tagged = Constraint.tagged(cls.__struct_config__.tag)
                if tagged != [cls]:
                    yield f"demands {each}, whose tag others have too: {', '.join(map(str, tagged))}"

        self._find(planner, problems)

    def test_plans_survive_json(self, planner: Planner) -> None:
        """Plans travel to the master, the journal and the run's folder as JSON."""

        def check(at: Situation) -> None:
            plan = answered(planner, at)
            if plan is not None:
                again = revive(msgspec.json.decode(msgspec.json.encode(plan), type=PlacementPlan))
                assert again == plan, "a plan that was written as JSON and read again is another one; types are wrong"

        self.for_all(check)

    # --------------------------------------------------------------------------------------------------------- purity

    def test_the_same_question_has_the_same_answer(self, planner: Planner) -> None:
        """The driver and every later run ask again. A resumed job must find its ranks on the same nodes."""
        one, other = planner.renewed(), planner.renewed()

        def check(at: Situation) -> None:
            same = one.answer(at.case) == other.answer(at.case)
            assert same, f"for {_told(at.request)}, two instances answer differently; no randomness, no clock"

        self.for_all(check)
        few = list(self.pool())[:3]
        first = [one.answer(at.case) for at in few]
        for seconds in OFFSETS:
            with shifted(seconds, planner.module):
                for at, answer in zip(few, first, strict=True):
                    same = other.answer(at.case) == answer
                    assert same, f"for {_told(at.request)}, the answer is another one {seconds} s later; no clock"

    def test_it_keeps_nothing_from_call_to_call(self, planner: Planner) -> None:
        """The kernel asks one instance for many plans, since it tries elastic jobs in many sizes. Only the request may
        count.
        """
        used = planner.renewed()
        answers = [planner.answer(at.case) for at in self.pool()]
        for at, first in zip(reversed(list(self.pool())), reversed(answers), strict=True):
            same = used.answer(at.case) == first
            assert same, f"for {_told(at.request)}, the answer depends on what it has been asked before"

    def test_another_process_has_the_same_answer(
        self, planner: Planner, subject: Subject, asked: PlacementRequest, shapes: Mapping[str, ClusterView]
    ) -> None:
        """The other process has another hash seed and no memory, like the driver of a resumed job."""
        cases = [Case(request, cluster) for cluster in shapes.values() for request in multiplied(asked, (1, 3))]
        if planner.replaces:
            lost = ("node-0",)
            for case in [Case(asked, cluster) for cluster in shapes.values()]:
                plan = planned(planner, case.request, case.cluster)
                stranded = stranded_in(plan, lost, plan.without(lost)) if plan is not None else None
                if stranded is not None:
                    cases.append(Case(asked, case.cluster.without(lost), stranded, lost))
        payload = msgspec.json.encode(cases)
        one, other = (
            msgspec.json.decode(ask_elsewhere(plan_there, subject, payload, hash_seed=seed)) for seed in (1, 2)
        )
        for _ in range(2):
            asked_here = [planner.answer(case) for case in cases]
        mine = msgspec.json.decode(msgspec.json.encode(asked_here))
        for case, here, there, used in zip(cases, one, other, mine, strict=True):
            what = "replace()" if case.lost else "place()"
            assert here == there, f"{what} depends on the order of hashes, for {_told(case.request)}: sort your sets"
            assert here == used, f"{what}, asked again, plans {_told(case.request)} differently"

    def test_its_arguments_stay_as_they_are(self, planner: Planner) -> None:
        """All strategies share the request, the cluster and the plan. Their dictionaries are mutable."""

        def check(at: Situation) -> None:
            before = msgspec.json.encode(at)
            planner.answer(at.case)
            assert msgspec.json.encode(at) == before, "it writes into its request, its cluster or the plan before it"

        self.for_all(check)

    def _find(self, planner: Planner, problems: Callable[[Situation, PlacementPlan], Iterable[str]]) -> None:
        """Fail with the first problem of a drawn plan. Plans that cannot be read are ignored here."""

        def check(at: Situation) -> None:
            plan = answered(planner, at)
            if plan is None or any(misplaced(at.request, plan)):
                return
            found = next(iter(problems(at, plan)), None)
            assert found is None, f"for {_told(at.request)}, it {found}"

        self.for_all(check)


def _told(request: PlacementRequest) -> str:
    """Return a short description of the request."""
    return "a job of " + " and ".join(
        f"{role.world_size} {role.role} ({', '.join(f'{name} {need:g}' for name, need in role.needs.items())})"
        for role in request.roles
    )
