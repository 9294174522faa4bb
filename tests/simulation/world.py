"""The simulated world: a clock, a seeded order of events, nodes, and what travels between processes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.checks import INVARIANTS, Checks
from tests.simulation.memory import Disk, NodeMemory
from tests.simulation.model import Reference
from tests.simulation.outcomes import Witness

from rolemesh.api.rank_ref import RankRef

if TYPE_CHECKING:
    from tests.simulation.agent import SimAgent
    from tests.simulation.backend import Backend
    from tests.simulation.master import Journal
    from tests.simulation.rank import SimRank
    from tests.simulation.scenario import Scenario

__all__ = ["Group", "Violation", "World"]


class Violation(AssertionError):
    """An invariant does not hold in `world`."""

    world: World


class Group:
    """The collective of one role in one generation: rounds in which every rank brings something in."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: dict[int, SimRank] = {}
        self.rounds: dict[tuple[int, int, int], dict[int, int]] = {}
        self.nonces: dict[tuple[int, int], int] = {}
        """Step and operator → the randomness of the call this time."""


class World:
    """Everything there is in one schedule. All randomness comes from `rng`, all waiting from `at`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.job = scenario.job
        self.rng = scenario.rng
        self.witness = Witness()
        self.now = 0.0
        self.clock = 0.0
        """Seconds by which the monotonic clock of the newest master's machine is ahead of `now`."""
        self.wall_ahead = 0.0
        """Seconds by which the time of day is ahead of `now`."""
        self.events = 0
        self.ended = ""
        self.message = ""
        self.calm = False
        self.wiped = False
        self.famine = 0.0
        self.hungry: tuple[str, ...] = ()
        """Kinds of processes that cannot start until the time `famine`."""
        self.trace: list[str] | None = [] if scenario.traced else None
        self.disk = Disk()
        self.checks = Checks(self)
        self.processes: dict[str, SimRank] = {}
        self.groups: dict[tuple[str, int], Group] = {}
        self.dead_nodes: set[str] = set()
        self.after = Reference(self.job)
        self.shape = self.job.shape
        """The job's present layout."""
        self.raises: set[tuple[RankRef, int]] = set(scenario.raises)
        self.backend: Backend
        self.journal: Journal
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._uids = self._nonces = 0
        self._channels: dict[tuple[str, str], float] = {}
        self.lost_lines: Counter[tuple[str, int]] = Counter()
        """The number of lost or overtaken reports with a role's line, by role and last step of the line."""
        self._memories: dict[tuple[str, str], NodeMemory] = {}

    # ---------------------------------------------------------------------------------------------------- time

    def at(self, delay: float, do: Callable[..., None], *arguments: Any) -> None:
        """Call `do` after `delay` seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, do, arguments))

    @property
    def wall(self) -> float:
        """The time of day, which somebody may set."""
        return self.now + self.wall_ahead

    @property
    def draws(self) -> int:
        """The number of draws up to now."""
        return self.rng.count

    def turn(self) -> bool:
        """The next event; False if there is none."""
        if not self._heap:
            return False
        self.now, _, do, arguments = heapq.heappop(self._heap)
        self.events += 1
        do(*arguments)
        return True

    def between(self, low: float, high: float) -> float:
        """A random time, more often short than long."""
        return low + (high - low) * self.rng.random() ** 2

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability

    def starves(self, what: str) -> bool:
        """Whether no such thing ("rank", "agent") can be started now."""
        return what in self.hungry and self.now < self.famine

    def note(self, who: str, what: object) -> None:
        """A line of the trace, if there is one."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f} {who:<14} {what}")

    def fail(self, invariant: str, why: str) -> None:
        """An invariant does not hold."""
        assert invariant in INVARIANTS, invariant
        self.note("VIOLATION", f"{invariant}: {why}")
        raise Violation(f"{invariant}: {why}")

    # ------------------------------------------------------------------------------------------------- network

    def deliver(self, send: Callable[..., None], *arguments: Any) -> None:
        """A message between master and agent: late, lost, or twice."""
        net = self.scenario.net
        drop = net.drop if not self.calm else net.drop / 4
        arrives = False
        for _ in range(2 if self.rng.random() < net.duplicate else 1):
            if self.rng.random() >= drop:
                self.at(self.between(0.001, net.delay), send, *arguments)
                arrives = True
        if not arrives:
            self.lose(arguments[-1])

    def lose(self, message: Any) -> None:
        """The receiver never takes this message."""
        self.lost_lines.update((line.role, line.step) for line in getattr(message, "metrics", ()))

    def nonce(self) -> int:
        """A number that no other ever is."""
        self._nonces += 1
        return self._nonces

    def uid(self) -> str:
        """A process's name that no other ever has."""
        self._uids += 1
        return f"p{self._uids}"

    def send(self, sender: SimRank | SimAgent, target: SimRank | SimAgent | None, frame: Any) -> None:
        """A frame over a socket: in order, and lost only if one of the two ends dies."""
        if target is None:
            return
        channel = (sender.uid, target.uid)
        arrives = max(self._channels.get(channel, 0.0), self.now + self.between(0.0002, self.scenario.net.socket))
        self._channels[channel] = arrives
        self.at(arrives - self.now, self._arrive, sender, target, frame)

    def _arrive(self, sender: SimRank | SimAgent, target: SimRank | SimAgent, frame: Any) -> None:
        if target.alive and self.now <= sender.cut:
            target.receive(frame)

    # --------------------------------------------------------------------------------------------------- nodes

    def memory(self, agent: str, node: str) -> NodeMemory:
        """The folder of an agent in its node's memory."""
        key = (agent, node)
        if key not in self._memories:
            self._memories[key] = NodeMemory(node)
        return self._memories[key]

    def wipe(self, node: str | None = None, agent: str | None = None) -> None:
        """Delete the memory of a node, or of one agent there."""
        for name, at in list(self._memories):
            if (node is None or at == node) and (agent is None or name == agent):
                del self._memories[name, at]
                self.wiped = True

    def memories(self) -> list[NodeMemory]:
        """All folders that there are."""
        return list(self._memories.values())

    def group(self, role: str, generation: int) -> Group:
        """The collective of a role's generation."""
        key = (role, generation)
        if key not in self.groups:
            self.groups[key] = Group(self.shape.sizes[role])
        return self.groups[key]
