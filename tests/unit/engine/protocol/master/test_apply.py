"""The index of ranks by agent: `apply` keeps it equal to a scan of all ranks, and new whenever ranks move."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as some
from tests.unit.engine.protocol.master.test_machine import job

from rolemesh.api.rank_ref import RankRef
from rolemesh.placement import PlacementPlan
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.apply import apply
from rolemesh_durable.protocol.master.state import JobState

AGENTS = ("a0", "a1", "a2", "new")
PLACES = tuple(AgentPlace(name, name, {"cpu": 1.0}) for name in AGENTS)
NO_PLAN = PlacementPlan((), (), ())


def scan(state: JobState) -> dict[str, list[tuple[RankRef, int]]]:
    found: dict[str, list[tuple[RankRef, int]]] = {}
    for key, record in state.ranks.items():
        found.setdefault(record.agent, []).append((key, record.launch.generation))
    return found


def index(state: JobState) -> dict[str, list[tuple[RankRef, int]]]:
    return {name: [(rank.launch.ref, rank.launch.generation) for rank in ranks] for name, ranks in state.here.items()}


def change(state: JobState, kind: str, ranks: list[int], agents: list[str]) -> t.Transition:
    """A transition of `kind`: rank ``ranks[i]`` goes to ``agents[i]``; a new layout has `len(agents)` ranks."""
    known = [(RankRef("work", n), to) for n, to in zip(ranks, agents, strict=False) if ("work", n) in state.ranks]
    match kind:
        case "start":
            started = [t.Started(*key, state.ranks[key].launch.generation + 1, to, -1, "none", "") for key, to in known]
            return t.RecoveryLaunched(1, started, 1.0)
        case "move":
            return t.RanksMoved(tuple(t.Move(*key, to, 0, 1) for key, to in known), PLACES, NO_PLAN)
        case _:
            moves = tuple(t.Move("work", n, to, 0, 1) for n, to in enumerate(agents))
            number = state.layouts + 1
            layout = state.layout.next(number, 0, "", {"work": len(agents)})
            return t.LayoutChanged(number, layout, ("work",), (), moves, PLACES, NO_PLAN)


@settings(max_examples=200, deadline=None)
@given(
    some.lists(
        some.tuples(
            some.sampled_from(["start", "move", "resize"]),
            some.lists(some.integers(0, 7), min_size=1, unique=True),
            some.lists(some.sampled_from(AGENTS), min_size=1, max_size=8),
        ),
        max_size=8,
    )
)
def test_the_index_of_ranks_by_agent_equals_a_scan(changes: list[tuple[str, list[int], list[str]]]) -> None:
    state = JobState.of(job(ranks=5, agents=3).config)
    assert index(state) == scan(state)
    for kind, ranks, agents in changes:
        before = state.here
        apply(state, change(state, kind, ranks, agents))
        assert index(state) == scan(state)
        assert state.here is not before
    for name in AGENTS:
        assert state.on(name) == [key for key, _ in scan(state).get(name, [])]
