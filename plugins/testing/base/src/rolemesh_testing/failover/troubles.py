"""Draws failed jobs as a failover level sees them: at random, or of one kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import get_args

import msgspec

from rolemesh.api.failures import Attempt, Cause, Failure, JobView, NodeState, RankView, Verdict

__all__ = ["CAUSES", "ROLES", "WHO", "Trouble", "each_kind", "failed", "job", "trouble"]

CAUSES: tuple[Cause, ...] = get_args(Cause)
WHO = ("a rank", "an agent", "a node", "a rank that the job does not have", "a node that the job does not have")
STATES = ("starting", "up", "ready", "running", "done", "failed", "halting")
ROLES = ("actor", "critic", "data")
NOW = 1000.0

REASONS = ("drawn", "out of memory", "out of memory on the GPU")


class Trouble(msgspec.Struct, frozen=True):
    """A failure, and the job in which it happened."""

    failure: Failure
    view: JobView

    @property
    def unknown(self) -> bool:
        """True if the job does not have the failed rank or node."""
        failure, view = self.failure, self.view
        if failure.rank >= 0:
            return all(r.ref != failure.ref for r in view.ranks)
        return all(r.node != failure.node for r in view.ranks)


def job(random: Random, most: int = 4, roles: Sequence[str] = ROLES) -> JobView:
    """Draw a job of some of `roles` on 1 to `most` nodes. Roles may be collective or stateful, and the job is at any
    point.
    """
    nodes = [f"node-{number}" for number in range(random.randint(1, most))]
    sizes = {role: random.randint(1, most) for role in roles[: random.randint(1, len(roles))]}
    persisted, calm = random.choice((-1, 0, 7)), random.choice((True, False))
    ranks = tuple(
        RankView(
            role,
            rank,
            random.choice(nodes),
            "running" if calm else random.choice(STATES),
            finished := random.randint(-1, 12),
            random.randint(0, 3),
            random.randint(-1, finished),
        )
        for role, size in sizes.items()
        for rank in range(size)
    )
    homes = dict.fromkeys(rank.node for rank in ranks)
    return JobView(
        "job",
        random.randint(1, 3),
        min(rank.finished for rank in ranks),
        ranks,
        tuple(role for role in sizes if random.choice((True, False))),
        tuple(role for role in sizes if random.choice((True, False))),
        tuple(NodeState(node, f"{node}/0", random.randint(0, 3) > 0) for node in homes),
        persisted,
        now=NOW,
        spares=tuple(f"spare-{number}" for number in range(random.randint(0, 2))),
        verdict=Verdict(random.choice(("software", "hardware", "user", "unknown")), random.choice(REASONS)),
        ranges={role: (random.randint(1, size), size) for role, size in sizes.items() if random.choice((True, False))},
        resources={role: {"cpu": 1.0, "gpu": 0.0, "memory_gb": random.choice((1.0, 3.0, 8.0))} for role in sizes},
        most={role: {"memory_gb": 8.0} for role in sizes if random.choice((True, False))},
    )


def failed(random: Random, view: JobView, cause: Cause, who: str) -> Failure:
    """Draw a failure of `cause` in `view`. `who` is one of `WHO`."""
    victim = random.choice(view.ranks)
    message = random.choice(("", "boom", "CUDA error: uncorrectable ECC error", "Connection reset by peer\n" * 3))
    step = random.randint(-1, 12)
    match who:
        case "a rank":
            role, rank, node = victim.role, victim.rank, random.choice((victim.node, ""))
        case "an agent" | "a node":
            role, rank, node = "", -1, victim.node
        case "a rank that the job does not have":
            role, rank, node = (*random.choice((("nobody", 0), (victim.role, 99))), "")
        case _:
            role, rank, node = "", -1, random.choice(("elsewhere", ""))
    return Failure(
        cause,
        role,
        rank,
        node,
        random.choice(("", "train")),
        step,
        message,
        random.choice(("", f'  File "flow.py", line 3, in train\nRuntimeError: {message}')),
        random.choice((0, 1, 137)) if cause == "exit" else None,
        random.choice((6, 9, 11, 64)) if cause == "signal" else None,
        victim.generation,
        random.choice(("", "step 11\nNVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")),
    )


def trouble(random: Random, roles: Sequence[str] = ROLES) -> Trouble:
    """Draw any failure in any job, with earlier failures and attempts."""
    view = job(random, roles=roles)
    earlier = tuple(failed(random, view, random.choice(CAUSES), "a rank") for _ in range(random.randint(0, 3)))
    attempts = tuple(
        Attempt(
            random.choice(("process", "node", "job")),
            NOW - random.choice((1.0, 100.0, 900.0)),
            view.group(failure.role, failure.rank),
            "before",
            random.choice(("recovered", "failed", "")),
        )
        for failure in earlier
    )
    view = msgspec.structs.replace(view, failures=earlier, attempts=attempts, failed_at=tuple(a.at for a in attempts))
    who = random.choice((*WHO[:1] * 3, *WHO[1:3] * 2, *WHO[3:]))
    return Trouble(failed(random, view, random.choice(CAUSES), who), view)


def each_kind(roles: Sequence[str] = ROLES) -> Iterator[tuple[str, Trouble]]:
    """Return every cause for every component in a few jobs, each with a description."""
    for cause in CAUSES:
        for who in WHO:
            for seed in range(3):
                random = Random(seed)
                view = job(random, roles=roles)
                yield f"{cause} of {who}", Trouble(failed(random, view, cause, who), view)
