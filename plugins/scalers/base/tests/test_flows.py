"""Ten flows whose load changes in steps: what holds them back is named, and ranks go where they help most, in time.

The flows run in a model with exact times: ranks of a role share its work out evenly, a call waits for its inputs one
after the other, and what it has made goes out when there is credit (a timed event graph, Baccelli et al. 1992,
"Synchronization and linearity", chapter 2). Times are in seconds, work in rank-seconds a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import pytest

from rolemesh_durable.scalers import EdgeLoad, Load, RoleLoad
from rolemesh_scaler_bottleneck import Bottleneck, BottleneckOptions, BottleneckScaler, bottleneck

PHASE_S = 100.0
IN_TIME_S = 60.0
"""Seconds after a change of the load within which the scaler must have set the sizes."""
GOOD = 0.9
"""Minimum ratio of the rate to that of the best constant sizes."""
PAUSE_S = 2.0
"""Seconds that a resize takes."""


class Role(NamedTuple):
    """How many ranks it may have, and what of a step they do not share, each of them doing it."""

    least: int
    most: int
    alone_s: float = 0.0


class Link(NamedTuple):
    """An edge."""

    producer: str
    consumer: str
    param: str
    lag: int = 0
    credits: int = 2


class Flow(NamedTuple):
    """Roles in the order of a step, and the phases of their load: work by role, and the role and edge to be named."""

    roles: dict[str, Role]
    links: tuple[Link, ...]
    phases: tuple[tuple[dict[str, float], str], ...]
    options: dict[str, Any]
    places: int = 10**6
    """Number of ranks that fit into the cluster."""

    def work(self, at: float) -> dict[str, float]:
        """Return the work of the roles in a step that begins then."""
        return self.phases[min(int(at / PHASE_S), len(self.phases) - 1)][0]

    def allowed(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is room and budget for such sizes."""
        cost = self.options.get("cost", {})
        spent = sum(
            cost.get(role, 1) * size for role, size in sizes.items() if self.roles[role].least < self.roles[role].most
        )
        return spent <= self.options.get("budget", 10**6) and sum(sizes.values()) <= self.places


class Run:
    """A run of a flow."""

    def __init__(self, flow: Flow, sizes: Mapping[str, int], work: Mapping[str, float] | None = None) -> None:
        self.flow, self.sizes, self._work = flow, dict(sizes), work
        self.free = dict.fromkeys(flow.roles, 0.0)
        self.taken: dict[str, list[float]] = {role: [] for role in flow.roles}
        """Role → the times at which it released the inputs of each step."""
        self.put: dict[Link, list[float]] = {link: [] for link in flow.links}
        """Link → the times at which each value left its producer."""
        self.spans: list[tuple[object, float, float]] = []
        self._ins = {role: [link for link in flow.links if link.consumer == role] for role in flow.roles}
        self._outs = {role: [link for link in flow.links if link.producer == role] for role in flow.roles}

    def step(self) -> None:
        """One step of all roles."""
        number = len(next(iter(self.taken.values())))
        for role in self.flow.roles:
            now = self.free[role]
            for link in self._ins[role]:
                if number >= link.lag:
                    now = self._until(self.put[link][number - link.lag], now, (link, "waiting"))
            work = self._work or self.flow.work(now)
            ends = now + self.flow.roles[role].alone_s + work[role] / self.sizes[role]
            self.spans.append((role, now, ends))
            self.taken[role].append(now := ends)
            for link in self._outs[role]:
                if number >= link.credits:
                    now = self._until(self.taken[link.consumer][number - link.credits], now, (link, "blocked"))
                self.put[link].append(now)
            self.free[role] = now

    def _until(self, there: float, now: float, what: object) -> float:
        if there > now:
            self.spans.append((what, now, there))
        return max(there, now)

    def resize(self, sizes: Mapping[str, int]) -> float:
        """All roles come to one step and go on from it together; when that is."""
        self.sizes.update(sizes)
        assert self.flow.allowed(self.sizes), (sizes, self.sizes)
        on = max(self.free.values()) + PAUSE_S
        self.free = dict.fromkeys(self.free, on)
        self.spans = []
        return on

    def until(self, at: float) -> None:
        """Go on until all that happens before is known."""
        while min(self.free.values()) < at:
            self.step()

    def load(self, begin: float, end: float) -> Load:
        """Return the load of that time, as a scaler gets it."""
        shares: dict[object, float] = {}
        for what, since, until in self.spans:
            shares[what] = shares.get(what, 0.0) + max(0.0, min(until, end) - max(since, begin)) / (end - begin)
        self.spans = [span for span in self.spans if span[2] > end]
        left = self.flow.places - sum(self.sizes.values())
        roles = tuple(
            RoleLoad(name, size, r.least, r.most, size + max(0, left), round(shares.get(name, 0.0), 3))
            for (name, r), size in zip(self.flow.roles.items(), self.sizes.values(), strict=True)
        )
        edges = tuple(
            EdgeLoad(
                x.producer,
                x.consumer,
                f"{x.consumer}.call",
                x.param,
                *(round(shares.get((x, y), 0.0), 3) for y in ("waiting", "blocked")),
                x.lag,
            )
            for x in self.flow.links
        )
        return Load(end - begin, end, roles, edges)

    def rate(self, begin: float, end: float) -> float:
        """Steps a second."""
        ends = [max(at) for at in zip(*self.taken.values(), strict=True)]
        seen = [at for at in ends if begin <= at <= end]
        return (len(seen) - 1) / (seen[-1] - seen[0])


class Look(NamedTuple):
    """The question to a scaler at the time `at`, about the load since `begin`, with these sizes."""

    begin: float
    at: float
    sizes: dict[str, int]
    named: Bottleneck | None
    resized: bool


def scaled(flow: Flow, sizes: Mapping[str, int]) -> tuple[Run, list[Look]]:
    """A run through all phases as the engine asks (docs/job-file.md#scalers-while-the-job-runs), once a second."""
    options = BottleneckOptions(**flow.options)
    scaler, run, looks = BottleneckScaler(options), Run(flow, sizes), list[Look]()
    began, since, agreed, before, now = -1.0, 0.0, 0, dict[str, bool](), 0.0
    while (now := now + 1.0) < PHASE_S * len(flow.phases):
        run.until(now)
        if began < 0:
            began = now if now >= since + options.cool_down_s else -1.0
        elif now >= began + options.period_s:
            load = run.load(began, now)
            said = scaler.decide(load)
            assert said == scaler.decide(load), "the same load, the same answer"
            wanted = said.sizes if said is not None else {}
            grows = {role: size > run.sizes[role] for role, size in wanted.items()}
            agreed, before = (agreed + 1 if grows == before else 1), grows
            resizes = bool(wanted) and agreed >= options.agree
            looks.append(Look(began, now, dict(run.sizes), bottleneck(load), resizes))
            began = now
            if resizes:
                since, began, agreed = run.resize(wanted), -1.0, 0
    return run, looks


def static_rate(flow: Flow, sizes: Mapping[str, int], work: Mapping[str, float]) -> float:
    """Steps a second with sizes and a load that never change, once it has come to that."""
    run = Run(flow, sizes, work)
    for _ in range(48):
        run.step()
    ends = [max(at) for at in zip(*run.taken.values(), strict=True)]
    return 24 / (ends[47] - ends[23])


def best_rate(flow: Flow, work: Mapping[str, float]) -> float:
    """The most that any sizes do. Only those are tried in which no role could have one more: that never hurts."""

    def full(sizes: dict[str, int]) -> bool:
        more = ({**sizes, role: size + 1} for role, size in sizes.items() if size < flow.roles[role].most)
        return flow.allowed(sizes) and not any(flow.allowed(each) for each in more)

    ranges = [range(role.least, role.most + 1) for role in flow.roles.values()]
    return max(
        static_rate(flow, sizes, work)
        for each in product(*ranges)
        if full(sizes := dict(zip(flow.roles, each, strict=True)))
    )


def phases(*each: tuple[str, str]) -> tuple[tuple[dict[str, float], str], ...]:
    """Build the load from ``role=work`` pairs, in fifths of a rank-second, and ``role: producer → consumer``."""
    return tuple(
        ({k: 0.2 * float(v) for k, v in (pair.split("=") for pair in work.split())}, named) for work, named in each
    )


ONE = Role(1, 1)
FLOWS = {
    "chain": Flow(
        {"data": ONE, "work": Role(1, 8), "sink": ONE}, (Link("data", "work", "rows"), Link("work", "sink", "rows")),
        phases(
            ("data=0.2 work=0.4 sink=0.1", "work: work → sink"),
            ("data=0.2 work=1.4 sink=0.1", "work: work → sink"),
            ("data=0.2 work=0.1 sink=0.1", "data: data → work"),
            ("data=0.1 work=0.6 sink=0.3", "work: work → sink"),
        ),
        {},
    ),
    "three stages, one budget": Flow(
        {"a": Role(1, 8), "b": Role(1, 8), "c": Role(1, 8)}, (Link("a", "b", "x"), Link("b", "c", "y")),
        phases(
            ("a=1 b=1 c=1", "a: a → b"),
            ("a=1 b=4 c=1", "b: b → c"),
            ("a=1 b=1 c=4", "c: b → c"),
            ("a=3 b=1 c=1", "a: a → b"),
        ),
        {"budget": 12},
    ),
    "fan-out": Flow(
        {"data": ONE, "left": Role(1, 8), "right": Role(1, 8), "join": ONE},
        (Link("data", "left", "x"), Link("data", "right", "x"), Link("left", "join", "l"), Link("right", "join", "r")),
        phases(
            ("data=0.1 left=1 right=0.3 join=0.1", "left: left → join"),
            ("data=0.1 left=0.3 right=1.2 join=0.1", "right: right → join"),
            ("data=0.1 left=0.9 right=0.7 join=0.1", "left: left → join"),
            ("data=0.1 left=0.1 right=0.1 join=0.4", "join: left → join"),
        ),
        {"budget": 10},
    ),
    "on-policy": Flow(
        {"rollout": Role(1, 12), "reward": Role(1, 6), "trainer": Role(1, 8)},
        (
            Link("trainer", "rollout", "weights", lag=1), Link("rollout", "reward", "texts"),
            Link("rollout", "trainer", "texts"),
            Link("reward", "trainer", "rewards"),
        ),
        phases(
            ("rollout=2 reward=0.5 trainer=1", "rollout: rollout → reward"),
            ("rollout=6 reward=0.5 trainer=1", "rollout: rollout → reward"),
            ("rollout=1 reward=0.3 trainer=4", "trainer: trainer → rollout"),
            ("rollout=1 reward=4 trainer=1", "reward: reward → trainer"),
        ),
        {"budget": 16},
    ),
    "off-policy by two steps": Flow(
        {"rollout": Role(1, 12), "reward": Role(1, 6), "trainer": Role(1, 8)},
        (
            Link("trainer", "rollout", "weights", lag=2), Link("rollout", "reward", "texts"),
            Link("reward", "trainer", "rewards"),
        ),
        phases(
            ("rollout=2 reward=0.5 trainer=1", "rollout: rollout → reward"),
            ("rollout=6 reward=0.5 trainer=1", "rollout: rollout → reward"),
            ("rollout=1 reward=0.3 trainer=4", "trainer: trainer → rollout"),
            ("rollout=2 reward=2 trainer=2", "reward: reward → trainer"),
        ),
        {"budget": 14},
    ),
    "a learner that cannot grow": Flow(
        {"actor": Role(1, 10), "learner": ONE},
        (Link("learner", "actor", "weights", lag=4), Link("actor", "learner", "rows")),
        phases(
            ("actor=2 learner=0.5", "actor: actor → learner"),
            ("actor=4 learner=0.5", "actor: actor → learner"),
            ("actor=0.5 learner=0.5", "learner: actor → learner"),
            ("actor=4 learner=1", "actor: actor → learner"),
        ),
        {},
    ),
    "two learners of one source": Flow(
        {"data": Role(1, 6), "one": Role(1, 6), "two": Role(1, 6)},
        (Link("data", "one", "x"), Link("data", "two", "x")),
        phases(
            ("data=0.5 one=1 two=1", "one: data → one"),
            ("data=0.5 one=3 two=1", "one: data → one"),
            ("data=0.5 one=1 two=3", "two: data → two"),
            ("data=3 one=1 two=1", "data: data → two"),
        ),
        {"budget": 9},
    ),
    "work that is not all shared": Flow(
        {"a": Role(1, 8, 0.02), "b": Role(1, 8, 0.04), "c": Role(1, 8)}, (Link("a", "b", "x"), Link("b", "c", "y")),
        phases(
            ("a=1 b=1 c=1", "b: b → c"),
            ("a=1 b=3 c=1", "b: b → c"),
            ("a=3 b=0.5 c=1", "a: a → b"),
            ("a=0.5 b=0.2 c=3", "c: b → c"),
        ),
        {"budget": 12},
    ),
    "ranks that cost two GPUs": Flow(
        {"prompts": ONE, "rollout": Role(1, 6), "judge": Role(1, 6), "trainer": Role(1, 4)},
        (
            Link("prompts", "rollout", "prompts"), Link("trainer", "rollout", "weights", lag=3),
            Link("rollout", "judge", "texts"),
            Link("judge", "trainer", "scores"), Link("rollout", "trainer", "texts"),
        ),
        phases(
            ("prompts=0.05 rollout=1.5 judge=0.5 trainer=0.5", "rollout: rollout → judge"),
            ("prompts=0.05 rollout=3 judge=0.5 trainer=0.5", "rollout: rollout → judge"),
            ("prompts=0.05 rollout=1 judge=2 trainer=0.5", "judge: judge → trainer"),
            ("prompts=0.05 rollout=1 judge=0.5 trainer=2", "trainer: rollout → trainer"),
        ),
        {"budget": 14, "cost": {"rollout": 2.0}},
    ),
    "a cluster that is full": Flow(
        {"replay": Role(1, 8), "live": Role(1, 8), "learner": Role(1, 8), "eval": ONE},
        (Link("replay", "learner", "old"), Link("live", "learner", "new"), Link("learner", "eval", "weights")),
        phases(
            ("replay=1.5 live=1 learner=1 eval=0.1", "replay: replay → learner"),
            ("replay=1 live=4 learner=1 eval=0.1", "live: live → learner"),
            ("replay=4 live=1 learner=1 eval=0.1", "replay: replay → learner"),
            ("replay=0.5 live=0.5 learner=3 eval=0.1", "learner: learner → eval"),
        ),
        {"budget": 11},
        places=12,
    ),
}  # fmt: skip


def _first(looks: list[Look], phase: int) -> Look:
    """The first look at nothing but this phase."""
    return next(look for look in looks if look.begin >= phase * PHASE_S)


@pytest.fixture(scope="module", params=FLOWS)
def seen(request: pytest.FixtureRequest) -> tuple[Flow, Run, list[Look]]:
    flow = FLOWS[request.param]
    return (flow, *scaled(flow, {name: role.least for name, role in flow.roles.items()}))


def test_the_bottleneck_of_the_flow_is_named(seen: tuple[Flow, Run, list[Look]]) -> None:
    flow, _, looks = seen
    for phase, (work, named) in enumerate(flow.phases):
        look = _first(looks, phase)
        assert look.named is not None
        assert f"{look.named.role}: {look.named.edge.producer} → {look.named.edge.consumer}" == named, (phase, look)
        # What is named is what helps most if it is faster.
        now = static_rate(flow, look.sizes, work)
        helps = {role: static_rate(flow, look.sizes, {**work, role: 0.8 * work[role]}) / now for role in work}
        assert helps[look.named.role] >= max(helps.values()) - 0.01, (phase, look, helps)


def test_within_a_minute_of_each_change_the_sizes_do_as_well_as_the_best(seen: tuple[Flow, Run, list[Look]]) -> None:
    flow, run, looks = seen
    for phase, (work, _) in enumerate(flow.phases):
        begin, end = phase * PHASE_S + IN_TIME_S, (phase + 1) * PHASE_S
        best = best_rate(flow, work)
        assert run.rate(begin, end) >= GOOD * best, (phase, run.rate(begin, end) / best, looks)
        late = [look for look in looks if look.resized and begin < look.at <= end]
        assert not late, f"it swings: {late}"
