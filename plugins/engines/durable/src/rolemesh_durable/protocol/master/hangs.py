"""Hangs: when so long nothing has moved that somebody must be at fault, and how much longer who works may take.

`hang.after_s` cannot be right for every operator. One that is judged while it computes may only be slow, so the same
operator of a role is allowed twice as long each time that it is judged in the same step: it comes through in the end,
and its ladder lasts for it. What it has proved to need it keeps; a rank that is stopped, or that waits, gains nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rolemesh.api.failures import Failure
from rolemesh_durable.protocol import hang
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.records import RankKey

if TYPE_CHECKING:
    from rolemesh_durable.protocol.master.machine import MasterMachine

__all__ = ["Allowance", "HangWatch"]

STACKS_S = 5.0
"""How long the verdict of a hang waits for the culprit's stacks."""
LOOK_S = 1.0
"""How often it is asked who is at fault, while that one may take longer."""
PATIENCE = 2.0
"""How much longer an operator may take than it was allowed when it was judged, or than it has taken."""


class Allowance(msgspec.Struct, frozen=True):
    """What an operator may take in `step`, where it was judged last, and in others: `base`. In seconds."""

    step: int
    here_s: float
    base_s: float


class HangWatch:
    """Follows whether anything moves."""

    def __init__(self, machine: MasterMachine) -> None:
        self._machine = machine
        self._moved = 0.0
        self._looked = float("-inf")
        self._suspect: tuple[hang.HangVerdict, float] | None = None
        self._spared: tuple[hang.HangVerdict, float] | None = None
        self._allowed: dict[tuple[str, str], Allowance] = {}

    def begin(self, now: float) -> None:
        """Everything moves: the job has just begun to run, or this master has."""
        self._moved = now

    def moved(self, key: RankKey, now: float) -> list[e.Effect]:
        """A rank has got on."""
        self._moved, self._suspect = now, None
        if self._spared is None or (self._spared[0].role, self._spared[0].rank) != key:
            return []
        # It was only slow: in other steps it may take as long.
        (spared, since), self._spared = self._spared, None
        took = now - since
        if took <= self._base(spared):
            return []
        data = {
            "role": spared.role, "rank": spared.rank, "step": spared.step, "operator": spared.operator,
            "seconds": round(took, 3), "allowed_s": round(PATIENCE * took, 3),
        }  # fmt: skip
        self.replayed("slow_operator", data)
        return [e.Record("slow_operator", data)]

    def tick(self, now: float) -> list[e.Effect]:
        """Time has passed."""
        machine = self._machine
        after, busy = machine.outline.hang_after_s, machine.coordinator.busy or machine.held_back
        if after is None or machine.phase != "running" or busy:
            self._suspect = self._spared = None
            self._moved = now if busy else self._moved
            return []
        if self._suspect is not None:
            verdict, asked = self._suspect
            return self._judge(verdict, "", now) if now >= asked + STACKS_S else []
        if now < max(self._moved + after, self._looked + LOOK_S):
            return []
        if all(record.state == "done" for record in machine.ranks.values()):
            return []
        self._looked = now
        verdict = self._culprit()
        if now < self._moved + self._allowance(verdict):
            self._spared = (verdict, self._moved)
            return []
        record = machine.ranks[verdict.role, verdict.rank]
        home = machine.agents[record.agent]
        if not machine.outline.stacks or home.state != "up":
            return self._judge(verdict, "", now)
        self._suspect = (verdict, now)
        dump = m.Dump(machine.outline.epoch, verdict.role, verdict.rank, record.launch.generation)
        return [e.ToAgent(record.agent, home.incarnation, dump)]

    def stacks(self, stacks: m.Stacks, now: float) -> list[e.Effect]:
        """The culprit's stacks have come."""
        if self._suspect is None or (stacks.role, stacks.rank) != (self._suspect[0].role, self._suspect[0].rank):
            return []
        return self._judge(self._suspect[0], stacks.text, now)

    def replayed(self, kind: str, data: dict[str, Any]) -> None:
        """After replay, and when it happens: what operators are allowed."""
        if kind == "hang" and data["next_s"]:
            self._allowed[data["role"], data["operator"]] = Allowance(data["step"], data["next_s"], data["base_s"])
        elif kind == "slow_operator":
            allowed = data["allowed_s"]
            self._allowed[data["role"], data["operator"]] = Allowance(data["step"], allowed, allowed)

    def kept(self) -> list[tuple[str, str, Allowance]]:
        """For a checkpoint: what operators are allowed."""
        return [(role, operator, allowance) for (role, operator), allowance in self._allowed.items()]

    def restored(self, allowed: list[tuple[str, str, Allowance]]) -> None:
        """From a checkpoint: what `kept` has said."""
        self._allowed = {(role, operator): allowance for role, operator, allowance in allowed}

    def _culprit(self) -> hang.HangVerdict:
        machine = self._machine
        reports = {key: record.report for key, record in machine.ranks.items() if record.report is not None}
        sizes = {role: record.launch.world_size for (role, _), record in machine.ranks.items()}
        turns = {key: record.launch.turns for key, record in machine.ranks.items()}
        return hang.culprit(machine.outline.graph, reports, sizes, collective=machine.collective, turns=turns)

    def _base(self, verdict: hang.HangVerdict) -> float:
        known = self._allowed.get((verdict.role, verdict.operator))
        return known.base_s if known is not None else self._machine.outline.hang_after_s or 0.0

    def _allowance(self, verdict: hang.HangVerdict) -> float:
        """How long everything may stand still for this verdict's rank."""
        if not verdict.computing:
            return self._machine.outline.hang_after_s or 0.0
        known = self._allowed.get((verdict.role, verdict.operator))
        return known.here_s if known is not None and known.step == verdict.step else self._base(verdict)

    def _judge(self, verdict: hang.HangVerdict, stacks: str, now: float) -> list[e.Effect]:
        machine = self._machine
        silent_s, allowed = now - self._moved, self._allowance(verdict)
        self._suspect, self._moved = None, now
        record = machine.ranks[verdict.role, verdict.rank]
        node = machine.agents[record.agent].place.node
        text, longer = verdict.text, 0.0
        if verdict.computing:
            longer = PATIENCE * allowed
            text += (
                f"; {allowed:g} s were allowed, {longer:g} s are the next time in this step: if it only takes that "
                "long, set hang.after_s above it"
            )
        data = {
            "role": verdict.role, "rank": verdict.rank, "step": verdict.step, "operator": verdict.operator,
            "text": text, "chain": list(verdict.chain), "next_s": longer, "base_s": self._base(verdict),
        }  # fmt: skip
        self.replayed("hang", data)
        found = Failure(
            "hang", verdict.role, verdict.rank, node, verdict.operator, verdict.step, text, stacks,
            generation=record.launch.generation,
        )  # fmt: skip
        record.state = "failed"
        return [e.Record("hang", data | {"stacks": stacks}), *machine.coordinator.failed(found, now, silent_s)]
