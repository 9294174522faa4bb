"""One schedule's circumstances, all of them from its seed: the job, its nodes, its network, and what goes wrong."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tests.configs import in_master, master_config
from tests.simulation.calls import with_calls
from tests.simulation.conversations import with_conversations
from tests.simulation.graphs import (
    apart_job,
    chain_job,
    grpo,
    random_job,
    seldom_job,
    shared_job,
    versions_group,
    versions_job,
    versions_shared,
)
from tests.simulation.messages import Counting
from tests.simulation.model import GROUPS, RESIZABLE
from tests.simulation.nemesis import Nemesis
from tests.simulation.schedule import Draws
from tests.simulation.weather import Weather
from tests.simulation.witness import FirstWitness, LastWitness

from rolemesh.api.failover import Budget, FailoverLevel
from rolemesh.api.failures import Failure, JobView, RecoveryPlan
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.rehearsal.master import Released
from rolemesh_durable.extensions.relayout.records import DrainWanted, ResizeWanted
from rolemesh_durable.extensions.shipped import SHIPPED, Replicas
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.job import PluginUse
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import events as me
from rolemesh_durable.protocol.master.ladder import LadderLevel
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.standard_diagnoser import StandardDiagnoser, StandardOptions
from rolemesh_durable.protocol.snapshot_plan import ENDLESS, SnapshotPlan
from rolemesh_failover_job import JobLevel
from rolemesh_failover_more_memory import MoreMemoryLevel
from rolemesh_failover_node import NodeLevel
from rolemesh_failover_process import ProcessLevel
from rolemesh_failover_shrink import ShrinkLevel

if TYPE_CHECKING:
    from tests.simulation.world import World

    from rolemesh.api.rank_ref import RankRef

__all__ = ["FAMILIES", "MOST_MEMORY", "REST_S", "Net", "Scenario"]

FAMILIES: dict[str, dict[str, float]] = {
    "calm": {},
    "process": {"rank": 3, "ranks": 1},
    "agents": {"rank": 1, "agent": 3, "freeze_agent": 1},
    "nodes": {"node": 3, "rank": 1, "agent": 1, "master": 0.5},
    "master": {"master": 3, "zombie": 1, "freeze_master": 1, "rank": 1},
    "all": {"rank": 3, "ranks": 1, "agent": 2, "node": 1, "master": 3, "zombie": 1, "freeze_agent": 1,
            "freeze_master": 1, "disk": 0.5},
    "storm": {"rank": 4, "ranks": 2, "agent": 3, "master": 4, "zombie": 1},
    "lost": {"node": 1},
    "back": {"node": 2, "agent": 4, "rank": 1},
    "hang": {"freeze_rank": 3, "rank": 1, "master": 1},
    "endless": {"rank": 3, "agent": 1, "master": 0.2},
    "poison": {"master": 1, "agent": 0.5},
    "stall": {"stall": 3},
    "passing": {"famine": 1},
    "slow": {},
    "leave": {"leave": 3},
    "leaving": {"leave": 3, "rank": 1, "agent": 1, "master": 1, "node": 0.5},
    "adopt": {"agent": 3, "freeze_agent": 1},
    "stalls": {"stall": 2, "rank": 2, "agent": 1, "master": 1},
    "finish": {"rank": 2, "ranks": 1, "agent": 2, "node": 0.5, "master": 4, "zombie": 2, "freeze_agent": 1,
               "freeze_master": 1, "stall": 1, "leave": 0.5},
    "finish calm": {},
    "checks": {"rank": 1, "agent": 2, "master": 2, "freeze_agent": 0.5, "freeze_master": 0.5},
    "checks calm": {},
    "calls": {"rank": 4, "ranks": 2, "agent": 1, "node": 0.5, "master": 1, "stall": 0.3},
    "conversations": {"rank": 5, "ranks": 5, "agent": 1, "node": 1.5, "master": 1, "stall": 0.3},
    "shared": {"rank": 5, "ranks": 3, "agent": 0.5, "node": 0.5, "master": 0.5},
    "shared calm": {},
    "shared first": {"rank": 5, "ranks": 3, "agent": 0.5, "node": 0.5, "master": 0.5},
    "resize": {"rank": 3, "ranks": 1, "agent": 2, "node": 0.5, "master": 4, "zombie": 1, "freeze_agent": 1,
               "freeze_master": 1, "stall": 1, "leave": 0.5},
    "resize calm": {},
    "shared resize": {"rank": 4, "ranks": 2, "agent": 1, "node": 0.5, "master": 2, "freeze_agent": 0.5},
    "calls resize": {"rank": 4, "ranks": 2, "agent": 1, "node": 0.5, "master": 2, "stall": 0.3},
    "drain": {"rank": 2, "ranks": 1, "agent": 2, "node": 1, "master": 4, "zombie": 1, "freeze_agent": 1,
              "freeze_master": 1, "leave": 1},
    "drain calm": {},
    "shrink": {"node": 3, "rank": 2, "agent": 1, "master": 3, "zombie": 0.5, "freeze_agent": 0.5,
               "freeze_master": 0.5},
    "memory": {"rank": 2, "agent": 1, "node": 1, "master": 4, "zombie": 1, "freeze_master": 0.5},
    "room": {"rank": 5, "ranks": 1, "agent": 1, "node": 0.5, "master": 0.5},
    "room calm": {},
    "room group": {"rank": 5, "ranks": 1, "agent": 1, "node": 0.5, "master": 0.5},
    "room group calm": {},
    "apart": {"rank": 4, "ranks": 1, "agent": 2, "node": 1, "master": 1, "leave": 1},
    "apart calm": {},
    "seldom": {"rank": 3, "ranks": 1},
    "scaling": {"rank": 2, "master": 0.5},
    "rehearsal": {"rank": 2, "agent": 1, "master": 2, "zombie": 1},
    "last": {"agent": 3, "master": 3, "zombie": 1, "freeze_agent": 1, "freeze_master": 1},
    "messages": {"rank": 2, "agent": 3, "node": 0.5, "master": 3, "zombie": 1, "freeze_agent": 1, "freeze_master": 1},
    "versions": {"rank": 3, "ranks": 2, "agent": 1, "node": 1, "master": 0.5},
    "versions group": {"rank": 3, "ranks": 2, "agent": 1, "node": 1, "master": 0.5},
    "versions shared": {"rank": 5, "ranks": 3, "agent": 0.5, "node": 1, "master": 0.5},
}  # fmt: skip
"""Kinds of failures and how likely each is."""

MOVING = (
    "nodes", "lost", "back", "all", "leaving", "finish", "calls", "resize", "shrink", "shared", "shared first",
    "versions", "versions group", "versions shared", "drain", "drain calm", "memory", "shared resize", "calls resize",
    "apart", "conversations",
)  # fmt: skip
"""Those in which ranks find another node."""
MOST_MEMORY = 3.5
"""Maximum memory of a rank that needs at most 3."""
REST_S = 3.0
"""Seconds after a resize in which the master asks no scaler."""
GRANTS = (2, 4, 12)
"""Masters of a job that is to finish differ in how far they let ranks run."""

TURNS = (
    "process", "agents", "nodes", "master", "all", "storm", "process", "all",
    "master", "nodes", "all", "storm", "calm", "hang", "all", "poison", "storm", "nodes", "master", "endless",
    "lost", "lost", "agents", "storm", "back", "back", "stall", "stalls", "passing",
    "slow", "leave", "leaving", "finish", "finish", "finish calm", "shrink", "adopt", "memory",
    "checks", "checks calm", "calls", "conversations",
    "shared", "shared", "shared calm", "shared first",
    "resize", "resize", "resize calm", "shared resize", "calls resize",
    "drain", "drain", "drain calm",
    "versions", "versions group", "versions shared",
    "apart", "apart calm",
)  # fmt: skip


class BansNode(FailoverLevel):
    """Moves all ranks away from the node of a rank that has failed, and bans the node."""

    scope = "node"

    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | None:
        """See the hook."""
        if failure.rank < 0 or not failure.node or len(view.ranks) > 6:
            return None
        here = [ref for rank in view.ranks if rank.node == failure.node for ref in view.group(*rank.ref)]
        lost = [*view.lost_with(failure), *here]
        ban = {failure.node: 4.0 if failure.rank else 1000.0}
        return RecoveryPlan(tuple(dict.fromkeys(lost)), wait_s=20.0, reason="it is to blame", ban=ban)


class Net(NamedTuple):
    """How bad the network is: probabilities, and longest delays in seconds (of messages; of frames on a socket)."""

    drop: float
    duplicate: float
    delay: float
    socket: float


class Scenario:
    """Everything that is fixed before the first event."""

    def __init__(self, seed: int, *, family: str = "", traced: bool = False) -> None:
        self.seed, self.traced = seed, traced
        self.rng = Draws(seed)
        """The draws of the world."""
        self.rate = 1.0
        """Seconds that the master's monotonic clock counts in a second."""
        self.rates: dict[str, float] = {}
        """Agent → the same of its clock; 1 if it is not here."""
        self.weather: Weather | None = None
        rng = random.Random(seed * 7919 + 1)
        self.family = family or TURNS[seed % len(TURNS)]
        self.steps = rng.randint(3, 8)
        resizes = "resize" in self.family
        if resizes or self.family.startswith(("drain", "room", "apart")) or self.family in ("shrink", "scaling"):
            self.steps += 16
        kind = self.family.partition(" ")[0]
        if self.family == "resize calm":
            kind = ("", "shared", "calls")[seed // 11 % 3]
        self.is_grpo = rng.random() < 0.6
        self.job = grpo(rng, self.steps) if self.is_grpo else random_job(rng, self.steps)
        self.call_bytes = 1 << 30
        if kind == "calls":
            chance = random.Random(seed * 15485863 + 7)
            self.job, self.call_bytes = with_calls(self.job, chance, own=resizes), chance.choice((2, 8, 1 << 30))
        if kind == "conversations":
            chance = random.Random(seed * 15485863 + 7)
            if seed % 3:
                self.is_grpo, self.job = True, shared_job(rng, self.steps)
            self.job, self.call_bytes = with_conversations(self.job, chance), chance.choice((2, 8, 1 << 30))
        if kind == "shared":
            first = self.family == "shared first" or (resizes and seed // 5 % 3 == 0)
            behind = seed // 7 % 3 if resizes and not first else 0
            self.is_grpo = not first and not behind
            self.job = shared_job(rng, self.steps, first=first, behind=behind)
        if kind == "apart":
            self.is_grpo, self.job = False, apart_job(rng, self.steps)
        if kind == "seldom":
            self.is_grpo, self.job = False, seldom_job(rng, self.steps)
        if self.family.startswith("room"):
            self.is_grpo, self.job = False, chain_job(rng, self.steps, groups="group" in self.family)
        if kind == "versions":
            makes = {"versions group": versions_group, "versions shared": versions_shared}.get(
                self.family, versions_job
            )
            self.is_grpo, self.job = False, makes(rng, self.steps)
        self.job.varying = self._varying(random.Random(seed * 32452843 + 11))
        self.net = rng.choice((Net(0, 0, 0.01, 0.002), Net(0.05, 0.05, 0.1, 0.005), Net(0.2, 0.2, 0.4, 0.02)))
        self.turn_s = rng.choice((0.0, 0.0, 0.05))
        self.pace = rng.choice((0.02, 0.1, 0.3))
        self.at_once = (64, 1, 2)[seed // 7 % 3]
        """Ranks of one agent that may be on their way at once."""
        self.disk_s = rng.choice((0.05, 0.5, 2.0))
        self.copy_s = rng.choice((0.05, 0.2, 1.0))
        self.disk_failures = rng.choice((0, 0, 0.2)) if self.family in ("all", "storm") else 0
        self.start_failures = rng.choice((0, 0, 0.05)) if self.family in ("all", "storm", "process") else 0
        if self.family == "lost":
            self.pace, self.copy_s = rng.choice((0.02, 0.1)), rng.choice((0.2, 1.0))  # copies are behind
        several = self.family in (*MOVING, "storm", "agents") or self.family.startswith("checks")
        several = several or rng.random() < 0.5
        count = rng.randint(2, 3) if several else 1
        self.rooms: dict[str, int] = {}
        """Node → the number of ranks that have room there."""
        self.room = -(-len(self.job.keys) // count)
        """The number of ranks that have room on each other node."""
        self._nodes = [f"n{i}" for i in range(count)]
        spares = rng.randint(1, 2) if self.family in MOVING else 0
        room = spares + (2 if self.family == "drain" else 0)  # of nodes that are drained, and do not go
        self._spares = {f"n{count + i}": rng.choice((0.0, 0.0, 10.0, 25.0)) for i in range(room)}
        likely = {"nodes": 0.8, "versions": 0.8, "lost": 1.0, "back": 0.0}.get(kind, 0.3)
        replicas = 1 if count > 1 and rng.random() < likely and Replicas in SHIPPED else 0
        every = (2, 2, 3) if kind == "versions" else (1, 3) if self.family.startswith("room") else (1, 1, 1, 2)
        self.plan = SnapshotPlan(True, rng.choice(every), rng.choice((1, 2, 3, 10)), 2, replicas)
        if self.family == "last":  # no snapshots, but the state after the last step
            self.plan = SnapshotPlan(last=True)
            self.disk_failures = (0, 0, 0.1)[seed // 3 % 3]
            self.disk_s = min(self.disk_s, 0.5)
        self.keeps: dict[RankRef, int] = {}
        """How many chunks ranks keep before they wait for a commit that frees some."""
        if self.family.startswith("room"):
            limits = random.Random(seed * 2750159 + 17)
            self.keeps = {key: limits.choice((1, 8)) for key in self.job.keys}
        self.limits: dict[str, PluginUse] = {}
        self.speeds: dict[str, float] = {}
        """Node → the result of a check; 1 is too slow."""
        if self.family.startswith("checks"):
            self._measured(random.Random(seed * 15485863 + 3))
        self.homes: dict[RankRef, str] = {}
        keys = list(self.job.keys)
        rng.shuffle(keys)
        for index, key in enumerate(keys):
            self.homes[key] = f"node{index % count}"
        weights = dict(FAMILIES[self.family])
        fixed = {
            "calm": 0,
            "finish calm": 0,
            "checks calm": 0,
            "shared calm": 0,
            "resize calm": 0,
            "drain calm": 0,
            "room calm": 0,
            "room group calm": 0,
            "apart calm": 0,
            "slow": 0,
            "lost": 1,
            "back": 6,
            "passing": 3,
            "endless": 10_000,
            "versions": 5,
            "conversations": 6,
            "versions group": 5,
            "versions shared": 5,
            "room": 5,
            "room group": 5,
            "poison": rng.randint(0, 1),
        }
        faults = fixed.get(self.family, rng.randint(1, 5))
        self.raises: set[tuple[RankRef, int]] = set()
        if self.family == "poison":
            self.raises = {(rng.choice(self.job.keys), rng.randrange(self.steps))}
        until = rng.choice((1.0, 3.0, 6.0))
        if kind in ("versions", "conversations") or self.family in (
            "room",
            "room group",
        ):  # steps that take as long as restarts, so that they are hit
            self.pace, until = rng.choice((0.03, 0.08) if kind == "conversations" else (0.1, 0.3)), 6.0
        self.nemesis = Nemesis(random.Random(seed * 104729 + 2), weights, faults, until, spares)
        if self.family in ("lost", "back"):
            self.nemesis.at_commit = rng.randrange(self.steps - 1)
        self.hang_after = 4.0 if self.family in ("hang", "stall", "slow") else None
        self.slow: dict[tuple[int, int], float] = {}
        if self.family == "slow":  # an operator that takes three times what is allowed, twice
            op = rng.choice(self.job.graph.ops).id
            self.slow = {(op, step): 3 * 4.0 for step in rng.sample(range(self.steps), 2)}
        self.says: set[tuple[RankRef, int]] = set()
        """Which ranks say in which steps that the job is to finish; step -1 is their set-up."""
        self.drain_s: float | None = None
        """When somebody asks for that."""
        if self.family.startswith("finish"):
            self._finishes(random.Random(seed * 6700417 + 5))
        self.asks: list[tuple[float, dict[str, int]]] = []
        """When somebody wants which roles to have how many ranks."""
        if resizes:
            self._resizes(random.Random(seed * 472882027 + 7))
            sizes = [{**self.job.sizes}, *(sizes for _, sizes in self.asks)]
            most = sum(max(each.get(role, 0) for each in sizes) for role in self.job.sizes)
            self.room = max(self.room, -(-most // len(self._nodes)))  # so that every job can go on when it has grown
        self.released = -1 if self.family == "rehearsal" else ENDLESS
        """The newest step that a rehearsal lets ranks run to."""
        self.drains: list[tuple[float, DrainWanted]] = []
        """Times and nodes: an operator drains the node, or takes it back."""
        self.goes: dict[str, float] = {}
        """Node → seconds from its drain to its loss."""
        if self.family.startswith("drain"):
            self._drains(random.Random(seed * 179424673 + 7))
        vanishing = random.Random(seed * 86028121 + 17)
        if self.family == "drain" and vanishing.random() < 0.25:
            self.nemesis.vanishing = vanishing
        self.ranges: dict[str, tuple[int, int]] = {}
        """The least and the most ranks of the roles that may have fewer."""
        if self.family == "shrink":
            self._shrinks(random.Random(seed * 961748941 + 13))
        self.scalers: dict[str, PluginUse] = {}
        if self.family == "scaling":
            self._follows_load()
        self.needs: dict[str, tuple[int, float]] = {}
        """Role → the step from which on its ranks need more memory, and the amount."""
        self.memory = float("inf")
        """The memory of each node."""
        if self.family == "memory":
            self._grows(random.Random(seed * 433494437 + 17))
        self.max_recoveries = 60
        self.bans = resizes and seed % 3 == 1 and len(self._nodes) > 1
        self.ladder = self._ladder()
        self.diagnosers: tuple[Any, ...] = (StandardDiagnoser(StandardOptions()).diagnose,)
        self.users = ("trainer",) if self.is_grpo else ()
        may_fail = self.family in ("endless", "poison") or self.memory < 4.0 * len(self.job.keys)
        self.outcomes = ("failed", "done") if may_fail else ("done",)
        self.deadline = 600.0 if self.family == "memory" else 150.0  # delays grow while nobody gets what it needs

    def _varying(self, rng: random.Random) -> frozenset[str]:
        """Roles that compute something else each time: of every fourth job about half, at least one."""
        chosen = self.family.startswith("versions")
        if not chosen and (
            self.family == "slow" or any(map(self.job.shared, self.job.graph.edges)) or rng.random() > 0.25
        ):
            return frozenset()
        roles = self.job.graph.roles
        return frozenset({"rollout" if chosen else rng.choice(roles), *(role for role in roles if rng.random() < 0.3)})

    def _measured(self, rng: random.Random) -> None:
        """Some nodes are too slow; there are as many spare ones, and maybe another that is too slow as well."""
        self.limits = {"speed": PluginUse({}, {"at_least": {"x": 5.0}, "slower": 3.0})}
        slow = rng.sample(self._nodes, rng.randint(0, len(self._nodes)))
        spare = [f"s{i}" for i in range(len(slow) + rng.randint(0, 1))]
        self._spares = {node: rng.choice((0.0, 0.0, 10.0)) for node in spare}
        self.speeds = dict.fromkeys(slow + spare[len(slow) :], 1.0)

    def _finishes(self, rng: random.Random) -> None:
        if rng.random() < 0.6:
            self.job.steps = ENDLESS
        who = rng.sample(self.job.keys, rng.randint(1, min(3, len(self.job.keys))))
        if rng.random() < 0.7:
            self.says = {(key, rng.randrange(-1, self.steps)) for key in who}
        if not self.says or rng.random() < 0.3:
            self.drain_s = rng.choice((0.0, 2.0, 6.0)) * rng.random()

    def _resizes(self, rng: random.Random) -> None:
        if rng.random() < 0.2:
            self.drain_s = 3 + 6 * rng.random()
        roles = [role for role in self.job.graph.roles if self.job.kinds[role] in RESIZABLE]
        for _ in range(rng.randint(1, 3)):
            asked = rng.sample(roles, min(len(roles), rng.choice((1, 1, 2))))
            if rng.random() < 0.1 or not asked:
                asked = [rng.choice(self.job.graph.roles)]
            self.asks.append((rng.choice((0.5, 2.0, 5.0)) * rng.random(), {r: rng.randint(1, 4) for r in asked}))

    def _drains(self, rng: random.Random) -> None:
        calm = self.family == "drain calm"
        if rng.random() < 0.2:
            self.drain_s = 3 + 6 * rng.random()
        for number, node in enumerate(rng.sample(self._nodes, rng.randint(1, 2))):
            at, notice = rng.choice((0.5, 2.0, 5.0)) * rng.random(), rng.choice((0.0, 120.0) if calm else (0.0, 6.0))
            self.drains.append((at, DrainWanted(node, f"drain {number}", notice)))
            if rng.random() < 0.2:
                self.drains.append((at + 4 * rng.random(), DrainWanted(node, f"back {number}", back=True)))
            if rng.random() < 0.7:
                self.goes[node] = rng.choice((0.0, 0.5, 3.0)) * rng.random()

    def _shrinks(self, rng: random.Random) -> None:
        """There is room for the ranks that there are, and rarely for those of a lost node."""
        job, agents = self.job, [f"node{i}" for i in range(len(self._nodes))]
        roles = [role for role in job.graph.roles if job.kinds[role] in RESIZABLE]
        self.ranges = {role: (rng.randint(1, max(1, job.sizes[role] - 1)), job.sizes[role]) for role in roles}
        self._spares = dict.fromkeys(list(self._spares)[:1], rng.choice((0.0, 10.0))) if rng.random() < 0.25 else {}
        self.nemesis.spares = len(self._nodes) - 1
        here = [sum(self.needs_room(key) for key, home in self.homes.items() if home == agent) for agent in agents]
        self.rooms = dict(zip(self._nodes, here, strict=True))
        if rng.random() < 0.4:
            for _ in range(rng.randint(1, 2)):
                sizes = {role: rng.randint(*self.ranges[role]) for role in rng.sample(roles, min(len(roles), 1))}
                self.asks.append((6 * rng.random(), sizes))

    def _follows_load(self) -> None:
        """A scaler asks for any number of ranks, and each role may have up to two more than it begins with."""
        roles = [role for role in self.job.graph.roles if self.job.kinds[role] in RESIZABLE]
        self.ranges = {role: (1, self.job.sizes[role] + 2) for role in roles}
        options = {"period_s": 0.5, "agree": 1, "cool_down_s": REST_S}
        self.scalers = {"load": PluginUse({}, options)} if roles else {}
        self.room += 2 * len(roles)

    def _grows(self, rng: random.Random) -> None:
        """Ranks begin with 1, and need more later: each node has enough for all, or, of a third of the jobs, few."""
        roles = rng.sample(self.job.graph.roles, min(2, len(self.job.graph.roles)))
        self.needs = {role: (rng.randrange(self.steps), rng.choice((1.5, 3.0))) for role in roles}
        self.memory = rng.choice((4.0 * len(self.job.keys), 4.0 * len(self.job.keys), float(self.room + 4)))

    def needs_room(self, key: RankRef) -> bool:
        """Whether a rank can be only where there is room. Others always find some, so that every job can go on."""
        return self.family != "shrink" or key[1] >= self.ranges.get(key[0], (1 << 30, 0))[0]

    def begin(self, world: World) -> None:
        """Schedule the events from outside that are no failures."""
        if self.drain_s is not None:
            world.at(self.drain_s, self._drain, world)
        for number, (at, sizes) in enumerate(self.asks):
            world.at(at, self._scale, world, f"ask {number}", sizes)
        for at, wanted in self.drains:
            world.at(at, self._drain_node, world, wanted)
        if self.family == "rehearsal":
            self._release(world)

    def _release(self, world: World) -> None:
        """Let the ranks of a rehearsal run one step further; a new master hears it again."""
        if not world.ended:
            self.released += "job_running" in world.checks.kinds
            world.backend.master.handle(Released(self.released))
            world.at(0.5, self._release, world)

    def _scale(self, world: World, who: str, sizes: dict[str, int]) -> None:
        told = any(e.kind == "resize_asked" and e.data["reason"] == who for e in world.journal.events)
        if not world.ended and not told:
            world.backend.master.handle(ResizeWanted(sizes, who))
            world.at(0.3, self._scale, world, who, sizes)

    def _drain_node(self, world: World, wanted: DrainWanted) -> None:
        told = wanted.reason in (e.data.get("reason", e.data.get("why")) for e in world.journal.events)
        if not world.ended and not told and world.now < 20:
            world.backend.master.handle(wanted)
            world.at(0.3, self._drain_node, world, wanted)

    def drained(self, world: World, node: str) -> None:
        """A node is without ranks: it may go now."""
        if node in self.goes:
            world.at(self.goes.pop(node), self._goes, world, node)

    def _goes(self, world: World, node: str) -> None:
        if (node, "drained") in world.journal.state.barred and not world.ended:
            world.backend.lose_node(node)

    def _drain(self, world: World) -> None:
        if not world.ended and "job_finishing" not in world.checks.kinds:
            world.backend.master.handle(me.FinishAsked("somebody has asked"))
            world.at(0.3, self._drain, world)

    def _ladder(self) -> tuple[LadderLevel, ...]:
        few, usual = self.family == "endless", self.family in ("passing", "memory")
        levels: list[tuple[str, Any]] = [
            ("process", ProcessLevel(ProcessLevel.Options(max_attempts=3 if few else 5 if usual else 30))),
            ("node", NodeLevel(NodeLevel.Options(max_attempts=2 if few else 5 if usual else 30, node_wait_s=40.0))),
            ("job", JobLevel(JobLevel.Options(max_attempts=2 if few else 5 if usual else 30))),
        ]
        if self.family == "shrink":
            levels[1] = "node", NodeLevel(NodeLevel.Options(max_attempts=30, when_full="fail"))
            levels.insert(2, ("shrink", ShrinkLevel(ShrinkLevel.Options(max_attempts=30))))
        if len(self._nodes) == 1 or self.family == "passing":
            del levels[1]
        if self.bans:
            levels.insert(0, ("bans", BansNode(Budget(max_attempts=2))))
        if self.family == "memory":
            levels.insert(0, ("more-memory", MoreMemoryLevel(MoreMemoryLevel.Options())))
        return tuple(
            LadderLevel(name, level.scope, level.options.max_attempts, level.options.window_s, level.recover)
            for name, level in levels
        )

    def nodes_now(self, now: float) -> list[str]:
        """The nodes that there are; spare ones may come late."""
        return self._nodes + [node for node, since in self._spares.items() if now >= since]

    def master_machine(self, epoch: int, clock: str) -> MasterMachine:
        """A fresh machine, as each epoch's master begins with; `clock` is that of where it is."""
        launches: dict[str, list[m.RankLaunch]] = {f"node{i}": [] for i in range(len(self._nodes))}
        for key in self.job.keys:
            role, rank = key
            collective = self.job.kinds[role] in GROUPS
            launch = m.RankLaunch(role, rank, self.job.sizes[role], 0, 1, 0, collective=collective)
            launches[self.homes[key]].append(msgspec.structs.replace(launch, memory_gb=1.0))
        config = master_config(
            self.job.graph,
            name="simulated",
            epoch=epoch,
            steps=self.job.steps,
            grant=random.Random(self.seed + epoch).choice(GRANTS) if self.family.startswith("finish") else 4,
            places=tuple(AgentPlace(f"node{i}", node, {"cpu": 1.0}) for i, node in enumerate(self._nodes)),
            launches={agent: tuple(those) for agent, those in launches.items()},
            start_timeout_s=20.0,
            stop_grace_s=1.0,
            driver=None,
            lease_s=10.0,
            snapshots=self.plan,
            stateful=self.job.stateful,
            collective=tuple(role for role, kind in self.job.kinds.items() if kind in GROUPS),
            ranges=self.ranges,
            resources={role: {"cpu": 1.0, "gpu": 0.0, "memory_gb": 1.0} for role in self.job.graph.roles},
            most={role: {"memory_gb": MOST_MEMORY} for role in self.job.graph.roles},
            hang_after_s=self.hang_after,
            clock=clock,
            checks=self.limits,
            scalers=self.scalers,
            rehearsed=self.family == "rehearsal",
            metrics_every=(1, None, None, 4)[self.seed % 4],
        )
        counting = [Counting] if self.family == "messages" else []
        extensions = (FirstWitness, *in_master(SHIPPED), *counting, LastWitness)
        return MasterMachine(config, self.ladder, self.diagnosers, extensions=extensions)

    def expect(self, world: World) -> None:
        """Check the invariants that hold at the end of this family only."""
        levels = set(world.checks.levels)
        if self.family == "resize calm":
            levels -= {"resize"}
        if self.family == "drain calm":
            levels -= {"drain"}
        calm = self.family.endswith("calm") and self.family != "checks calm"
        if levels and (calm or self.family == "stall"):
            world.fail("no rank restarts without a failure", f"{levels}")
        used = {self._nodes[int(agent.removeprefix("node"))] for agent in self.homes.values()}
        if self.family == "checks calm" and bool(levels) != bool(used & self.speeds.keys()):
            world.fail("ranks leave unfit nodes only", f"{levels}, too slow are {list(self.speeds)}")
        if self.family == "leave" and levels - {"drain"}:
            world.fail("no rank restarts without a failure", f"{levels}: an agent that leaves is none")
        if self.family == "slow" and world.checks.kinds.get("hang", 0) > 2:
            world.fail("a busy operator is not restarted", f"{world.checks.kinds['hang']} verdicts")
        if self.family in ("process", "master", "seldom") and levels - {"process"}:
            world.fail("recovery restarts the fewest ranks", f"{levels}")
        # What a node takes along of roles that vary no copy brings back.
        if self.family == "lost" and not self.job.varying and levels - {"process", "node"}:
            world.fail("recovery restarts the fewest ranks", f"{levels}: a replica would have done")
        if not self.disk_failures and not self.weather and "snapshot_warning" in world.checks.kinds:
            world.fail("checkpoints are whole", "a checkpoint was to be completed without all of its parts")
