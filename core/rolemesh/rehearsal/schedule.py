"""Which failure comes next: decided by the seed, the rehearsal's targets, and what is alive. Pure."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple, TypeAlias

from rolemesh.observer import JobStatus
from rolemesh.rehearsal.spec import Rehearsal

__all__ = ["Fault", "moments", "next_fault"]

Kind: TypeAlias = Literal["kill", "stop", "exit", "raise", "disk"]

AGAIN = 0.25
"""Share of the failures that follow the one before at once, while the job is still being brought back."""


class Fault(NamedTuple):
    """`target` as in `rolemesh.control.InjectFault`."""

    kind: Kind
    target: str


class Moment(NamedTuple):
    """When a failure comes: as soon as `step` is committed, and `delay_s` later; `again`: right after the last one."""

    step: int
    delay_s: float
    again: bool


def moments(rehearsal: Rehearsal, steps: int) -> list[Moment]:
    """The moments of all failures, in order, spread over the job's steps."""
    rng = random.Random(f"moments {rehearsal.seed}")
    at = sorted(rng.randrange(-1, max(1, steps - 1)) for _ in range(rehearsal.kills))
    found: list[Moment] = []
    for step in at:
        again = bool(found) and rng.random() < AGAIN
        found.append(Moment(found[-1].step if again else step, rng.uniform(0.0, 0.4), again))
    return found


def next_fault(rng: random.Random, rehearsal: Rehearsal, status: JobStatus, nodes: int) -> Fault | None:
    """A failure of something that is alive now, or None if there is nothing of the kind."""
    ranks = [f"{r.role}/{r.rank}" for r in status.ranks if r.state in ("up", "ready", "running", "done")]
    agents = [a.agent for a in status.agents if a.state == "up"]
    living = sorted({a.node for a in status.agents if a.state == "up"})
    choices = [t for t in rehearsal.targets if t != "node" or (nodes > 1 and len(living) > 1)]
    if not choices:
        return None
    match rng.choice(choices):
        case "rank" if ranks:
            return Fault(rng.choice(("kill", "kill", "exit", "raise")), rng.choice(ranks))
        case "agent" if agents:
            return Fault("kill", f"agent:{rng.choice(agents)}")
        case "master":
            return Fault("kill", "master")
        case "stop":
            who = rng.choice(("rank", "agent", "master"))
            if who == "rank" and ranks:
                return Fault("stop", rng.choice(ranks))
            if who == "agent" and agents:
                return Fault("stop", f"agent:{rng.choice(agents)}")
            return Fault("stop", "master")
        case "node":
            return Fault("kill", f"node:{rng.choice(living)}")
        case "disk" if agents:
            return Fault("disk", f"agent:{rng.choice(agents)}")
    return None
