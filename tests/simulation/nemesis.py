"""Failures at random moments, and at the moments that hurt most."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from rolemesh.api.observer import Event
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae

if TYPE_CHECKING:
    from tests.simulation.agent import SimAgent
    from tests.simulation.world import World

__all__ = ["Nemesis"]

DELICATE = (
    "recovery_planned",
    "recovery_launched",
    "recovered",
    "rolled_back",
    "replanned",
    "agent_started",
    "rank_up",
    "job_stopping",
    "job_finishing",
    "stop_point",
    "layout_changed",
    "drained",
)
"""Records after which a failure finds a recovery in the middle."""

LAST = (
    "job_stopping",
    "agent_stopped",
    "job_finishing",
    "stop_point",
    "resize_asked",
    "layout_changed",
    "resized",
    "drain_asked",
    "drained",
)
"""Records after which the next one may be the job's last: a master that dies with it has to be followed by another."""


class Nemesis:
    """A plan of failures: `times` of them at random, then no more."""

    def __init__(self, rng: random.Random, weights: dict[str, float], count: int, until: float, spares: int) -> None:
        self.rng, self.weights, self.until = rng, weights, until
        self.left = count
        self.spares = spares
        self.endless = count > 1000
        self.last = 0.0
        self.at_commit: int | None = None
        """A node is lost when this step is committed, before any other failure."""
        self.vanishing: random.Random | None = None
        """The stream of a node that says it goes, whose ranks fail, and that is lost before they start again."""
        self.done: list[str] = []
        self.strikes = 0
        """The number of failures that have been due."""
        self.skipped: set[int] = set()
        """The numbers of those that are left out."""

    def begin(self, world: World) -> None:
        """Plan the failures."""
        if self.vanishing is not None:
            world.at(self.vanishing.random() * self.until, self._vanish, world, self.vanishing)
        if self.endless:
            world.at(1.0, self._strike_on, world)
            return
        for _ in range(self.left if self.weights and self.at_commit is None else 0):
            world.at(self.rng.random() * self.until, self.strike, world)
        world.at(self.until, self._over, world)

    def _over(self, world: World) -> None:
        self.left = 0
        world.calm = True
        self.last = max(self.last, world.now)

    def _strike_on(self, world: World) -> None:
        if not world.ended:
            self.left = 10
            self.strike(world)
            world.at(0.2 + self.rng.random(), self._strike_on, world)

    def recorded(self, world: World, event: Event) -> None:
        """A transition is in the journal: now and then the next failure comes just then."""
        if event.kind in LAST and "master" in self.weights and self.rng.random() < 0.2 and self._due():
            world.backend.master.dies_at = self.rng.choice(("before", "after the journal, before", "within"))
            self.last = max(self.last, world.now)
        if self.at_commit is not None:
            if event.kind == "committed" and event.data["step"] >= self.at_commit:
                self.at_commit = None
                world.at(self.rng.random() * 0.3, self.strike, world, "node")
        elif self.left > 0 and self.weights and event.kind in DELICATE and self.rng.random() < 0.15:
            world.at(self.rng.random() * self.rng.choice((0.001, 0.05, 0.3)), self.strike, world)

    def said(self, world: World, agent: SimAgent) -> None:
        """A rank of `agent` has just said that the job is to finish: now and then nobody else hears of it."""
        if self.left > 0 and self.weights and self.rng.random() < 0.25:
            self.left -= 1
            if not self._due():
                return
            agent.frozen = self.rng.random() < 0.7
            world.note("nemesis", f"{agent.label} is to die" + ", and stands still" * agent.frozen)
            world.at(self.rng.random() * 0.3, self._end, world, agent)

    def _end(self, world: World, agent: SimAgent) -> None:
        if agent.alive and not world.ended:
            agent.end("the nemesis kills it")
            self.last = max(self.last, world.now)
            self.done.append(f"{world.now:.2f} agent")

    def strike(self, world: World, kind: str = "") -> None:
        """One failure: of this kind, or of any that there are weights for."""
        if self.left <= 0 or world.ended:
            return
        kinds = list(self.weights)
        kind = kind or self.rng.choices(kinds, [self.weights[k] for k in kinds])[0]
        self.left -= 1
        if self._due() and getattr(self, f"_{kind}")(world):
            self.last = max(self.last, world.now)
            self.done.append(f"{world.now:.2f} {kind}")

    def _due(self) -> bool:
        """Count a failure; return whether it comes."""
        self.strikes += 1
        return self.strikes - 1 not in self.skipped

    # ---------------------------------------------------------------------------------------------------------- ranks

    def _rank(self, world: World) -> bool:
        live = [rank for rank in world.processes.values() if rank.agent.alive]
        if not live:
            return False
        rank = self.rng.choice(live)
        how = self.rng.choice(("kill", "kill", "kill", "raise", "exit"))
        world.note("nemesis", f"{how} {rank.name}")
        if how == "kill":
            rank.die(9)
        else:
            rank.receive(m.Fault("raise" if how == "raise" else "exit"))
        return True

    def _ranks(self, world: World) -> bool:
        """Several at once."""
        return sum(self._rank(world) for _ in range(self.rng.randint(2, 4))) > 0

    def _freeze_rank(self, world: World) -> bool:
        live = [rank for rank in world.processes.values() if rank.agent.alive]
        if not live or "job_running" not in world.checks.kinds:
            return False  # who does not start in time is another matter
        rank = self.rng.choice(live)
        rank.frozen = True
        world.note("nemesis", f"freezes {rank.name}")
        if self.rng.random() < 0.5:

            def thaw() -> None:
                rank.frozen = False
                rank.look()

            world.at(self.rng.random() * 3, thaw)
        return True

    # --------------------------------------------------------------------------------------------------------- agents

    def _agent(self, world: World) -> bool:
        live = [agent for agent in world.backend.agents.values() if agent.alive]
        if world.scenario.family == "adopt":  # one that has never come up has no ranks
            live = [agent for agent in live if agent.known]
        if not live:
            return False
        self.rng.choice(live).end("the nemesis kills it")
        return True

    def _leave(self, world: World) -> bool:
        """SIGTERM to an agent."""
        live = [agent for agent in world.backend.agents.values() if agent.alive and not agent.frozen]
        if not live:
            return False
        agent = self.rng.choice(live)
        world.note("nemesis", f"tells {agent.label} to end")
        agent.handle(ae.Leave())
        return True

    def _freeze_agent(self, world: World) -> bool:
        live = [agent for agent in world.backend.agents.values() if agent.alive and not agent.frozen]
        if not live:
            return False
        agent = self.rng.choice(live)
        agent.frozen = True
        seconds = self.rng.choice((0.5, 3.0, 7.0)) * self.rng.random()
        world.note("nemesis", f"freezes {agent.label} for {seconds:.2f} s")

        def thaw() -> None:
            if agent.alive:
                agent.thaw()

        world.at(seconds, thaw)
        return True

    def _node(self, world: World) -> bool:
        live = sorted({agent.node for agent in world.backend.agents.values() if agent.alive})
        if not live or self.spares <= 0:
            return False
        self.spares -= 1
        world.backend.lose_node(self.rng.choice(live))
        return True

    def _vanish(self, world: World, rng: random.Random) -> None:
        """A node says that it goes, then its ranks fail, and it is lost before they start again."""
        live = [agent for agent in world.backend.agents.values() if agent.alive and not agent.frozen]
        if not live or self.spares <= 0 or world.ended:
            return
        self.spares -= 1
        agent = rng.choice(live)
        world.note("nemesis", f"tells {agent.label} to end, and its ranks fail before it goes")
        agent.handle(ae.Leave())
        failed = rng.random() * 0.1

        def fail() -> None:
            for rank in [rank for rank in world.processes.values() if rank.agent is agent]:
                rank.die(9)

        def go() -> None:
            self.last = max(self.last, world.now)
            if not world.ended:
                world.backend.lose_node(agent.node)
                self.done.append(f"{world.now:.2f} node")

        world.at(failed, fail)
        world.at(failed + rng.random() * rng.choice((0.01, 0.1, 0.5)), go)
        self.last = max(self.last, world.now)

    # --------------------------------------------------------------------------------------------------------- master

    def _master(self, world: World) -> bool:
        master = world.backend.master
        if not master.alive:
            return False
        how = self.rng.choice(("now", "before", "between", "within"))
        world.note("nemesis", f"kills the master: {how}")
        if how == "now":
            world.backend.kill_master()
        else:
            master.dies_at = {"before": "before", "between": "after the journal, before", "within": "within"}[how]
        return True

    def _zombie(self, world: World) -> bool:
        if not world.backend.master.alive:
            return False
        world.backend.replace_master(self.rng.random() * 4)
        return True

    def _freeze_master(self, world: World) -> bool:
        master = world.backend.master
        if not master.alive:
            return False
        master.frozen = True
        seconds = self.rng.choice((0.5, 3.0, 7.0)) * self.rng.random()
        world.note("nemesis", f"freezes the master for {seconds:.2f} s")

        def thaw() -> None:
            if master.alive:
                master.thaw()

        world.at(seconds, thaw)
        return True

    def _stall(self, world: World) -> bool:
        """The master's store blocks."""
        master = world.backend.master
        if not master.alive or master.stalled:
            return False
        master.stall()
        seconds = self.rng.choice((3.0, 12.0, 40.0)) * self.rng.random()
        world.note("nemesis", f"the master's store blocks for {seconds:.2f} s")

        def thaw() -> None:
            self.last = max(self.last, world.now)
            if master.alive:
                master.thaw()

        world.at(seconds, thaw)
        return True

    def _famine(self, world: World) -> bool:
        """For longer than a moment nothing can be started: no process, or no agent either."""
        if "job_running" not in world.checks.kinds or world.now < world.famine:
            return False
        world.famine = world.now + 30.0 + self.rng.random() * 15.0
        world.hungry = self.rng.choice((("rank",), ("agent",), ("rank", "agent")))
        world.note("nemesis", f"no {' and no '.join(world.hungry)} starts until {world.famine:.2f}")
        self.last = max(self.last, world.famine)
        return self._agent(world) if "agent" in world.hungry else self._rank(world)

    def _disk(self, world: World) -> bool:
        """The newest checkpoint on disk is damaged."""
        newest = world.disk.newest()
        if newest < 0:
            return False
        world.note("nemesis", f"damages the checkpoint of step {newest}")
        world.disk.damaged.add(newest)
        return True
