"""Faults of storage and of clocks, which may come beside the failures of every family.

The disk is slow, refuses, or loses a part of a checkpoint that was written; a checkpoint is torn; the master's store
blocks. Somebody sets the time of day, and monotonic clocks run at different speeds.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario
    from tests.simulation.world import World

__all__ = ["Weather"]

DRIFT = 0.01
"""Maximum share by which a clock is too fast or too slow; real clocks differ by less than a thousandth."""
KINDS = ("slow", "refuses", "lost", "torn", "blocks", "clock", "clock")


class Weather:
    """A plan of such faults, until the nemesis has made its last failure."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(scenario.seed * 86028121 + 19)
        self.gusts = self.rng.randint(2, 6)
        self.skipped: set[int] = set()
        """The numbers of those that are left out."""
        scenario.rate = 1.0 + self.rng.uniform(-DRIFT, DRIFT)
        scenario.rates = {f"node{number}": 1.0 + self.rng.uniform(-DRIFT, DRIFT) for number in range(8)}

    def begin(self, world: World) -> None:
        """Plan the faults."""
        for number in range(self.gusts):
            world.at(self.rng.random() * self.scenario.nemesis.until, self._blow, world, number)

    def _blow(self, world: World, number: int) -> None:
        kind, size, seconds = self.rng.choice(KINDS), self.rng.random(), 4.0 * self.rng.random() ** 2
        if world.ended or number in self.skipped:
            return
        if getattr(self, f"_{kind}")(world, size, seconds):
            self.scenario.nemesis.last = max(self.scenario.nemesis.last, world.now + seconds)

    def _slow(self, world: World, size: float, seconds: float) -> bool:
        factor = 1.0 + 9.0 * size
        world.note("weather", f"disk and copies take {factor:.1f} times as long for {seconds:.2f} s")
        self.scenario.disk_s *= factor
        self.scenario.copy_s *= factor

        def over() -> None:
            self.scenario.disk_s /= factor
            self.scenario.copy_s /= factor

        world.at(seconds, over)
        return True

    def _refuses(self, world: World, size: float, seconds: float) -> bool:
        before = self.scenario.disk_failures
        world.note("weather", f"the disk refuses {size:.0%} of the writes for {seconds:.2f} s")
        self.scenario.disk_failures = max(before, size)

        def over() -> None:
            self.scenario.disk_failures = before

        world.at(seconds, over)
        return True

    def _lost(self, world: World, size: float, seconds: float) -> bool:
        waiting = [part for part in world.disk.parts if part[0] not in world.disk.complete]
        if not waiting:
            return False
        lost = waiting[int(size * len(waiting))]
        world.note("weather", f"the disk loses the part of {lost[1]} of the checkpoint of step {lost[0]}")
        del world.disk.parts[lost]
        world.checks.unkept |= lost[0] == world.checks.end
        return True

    def _torn(self, world: World, size: float, seconds: float) -> bool:
        newest = world.disk.newest()
        if newest < 0:
            return False
        world.note("weather", f"tears the checkpoint of step {newest}")
        world.disk.damaged.add(newest)
        world.checks.unkept |= newest == world.checks.end
        return True

    def _blocks(self, world: World, size: float, seconds: float) -> bool:
        master = world.backend.master
        if not master.alive or master.stalled:
            return False
        world.note("weather", f"the master's store blocks for {seconds:.2f} s")
        master.stall()

        def over() -> None:
            if master.alive:
                master.thaw()

        world.at(seconds, over)
        return True

    def _clock(self, world: World, size: float, seconds: float) -> bool:
        world.wall_ahead += (2.0 * size - 1.0) * 10.0 ** self.rng.randint(0, 5)
        world.note("weather", f"the time of day is {world.wall:.1f}")
        return True
