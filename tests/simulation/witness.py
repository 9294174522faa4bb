"""A stranger's extensions in the simulated master: they see which hooks the machine calls, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
from rolemesh_durable.protocol.master.state import AgentRecord, RankRecord

if TYPE_CHECKING:
    from tests.simulation.master import SimMaster

__all__ = ["FirstWitness", "LastWitness", "examine"]


class Witness(MasterExtension):
    """Writes down the hooks that the machine calls."""

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self.seen: list[tuple[str, str]] = []
        """Pairs (class, hook) since the last turn."""

    def _see(self, hook: str) -> None:
        self.seen.append((type(self).__name__, hook))

    def begin(self) -> None:
        """A master begins."""
        self._see("begin")

    def turn(self) -> None:
        """The machine decides."""
        self._see("turn")

    def tick(self) -> None:
        """Time has passed."""
        self._see("tick")

    def agent_reported(self, agent: AgentRecord, report: m.Report) -> None:
        """An agent has reported."""
        self._see(f"report {report.seq} of {agent.place.agent}")

    def rank_reported(self, rank: RankRecord, before: m.RankReport | None, seen: m.RankReport) -> None:
        """An agent has reported of a rank."""
        self._see(f"report of {seen.ref}")


class FirstWitness(Witness):
    """The first extension of the list."""


class LastWitness(Witness):
    """The last extension of the list."""

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self.seen = parts.extension(FirstWitness).seen


def examine(master: SimMaster, begins: bool) -> None:
    """Compare the hooks of a turn with the contract of extensions: each is called once, in the order of the list.

    `begins`: the turn is the master's first one.
    """
    seen = master.machine.extension(FirstWitness).seen
    hooks = [hook for who, hook in seen if who == "FirstWitness"]
    expected = [(who, hook) for hook in hooks for who in ("FirstWitness", "LastWitness")]
    phase = master.machine.state.phase
    runs = phase in ("starting", "running")
    if not runs and seen == expected[:-1]:
        expected = seen  # an extension between the two has ended the job
    begun = hooks.count("begin") == begins or phase == "ended"
    if seen != expected or not begun or hooks.count("turn") > 1 or ("turn" not in hooks and runs):
        master.world.fail("the master calls each hook once, in order", f"master {master.epoch}: {seen}")
    seen.clear()
