"""Parse the argument of ``--chaos``: ``kills=10,seed=7,targets=rank,agent,master``."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from rolemesh.errors import JobFileError, nearest

__all__ = ["Kind", "Rehearsal", "kind_of", "parse"]

Kind: TypeAlias = Literal[
    "rank", "agent", "master", "node", "stop", "disk", "zygote", "full", "stall", "clock", "child"
]
TARGETS: tuple[str, ...] = get_args(Kind)
RANK = re.compile(r"(\w+)/(\d+|\*)")
"""A rank, ``ROLE/RANK``, or any rank of a role, ``ROLE/*``."""
OF_RANKS, OF_NAMES = ("rank", "stop", "full", "child"), ("agent", "node", "disk", "zygote")
"""Kinds of failures of a rank, and kinds of failures of a named agent or node."""
WHERE = "--chaos"


class Rehearsal(msgspec.Struct, frozen=True):
    """`kills` failures. The seed decides their moments and kinds.

    - rank: SIGKILL, ``os._exit``, or an exception in an operator.
    - agent, master: SIGKILL.
    - stop: SIGSTOP of a rank, an agent or the master.
    - node: everything on a node is lost.
    - disk: the next snapshot finds the disk full.
    - zygote: SIGKILL of a zygote.
    - full: for 3 s, no file of the master, an agent or a rank can grow, on disk or in shared memory.
    - stall: for 3 s, the journal's database and the file system of the run's folder accept no writes.
    - clock: the wall clock of the master or an agent jumps by an hour.
    - child: SIGKILL of a process that a rank has started itself, as soon as it has one. It needs the name of the rank.

    A target may name the process: ``trainer/1`` is a rank and ``trainer/*`` any rank of a role; ``stop:trainer/1``,
    ``full:trainer/1`` and ``child:trainer/1`` are other failures of it. ``agent:NAME``, ``disk:NAME`` and
    ``zygote:NAME`` concern one agent, ``node:NAME`` one node.
    """

    kills: int = 5
    seed: int = 0
    targets: tuple[str, ...] = ("rank", "agent", "master")

    @property
    def kinds(self) -> set[str]:
        """The kinds of its failures."""
        return {kind_of(target)[0] for target in self.targets}

    @property
    def ranks(self) -> list[tuple[str, int | None]]:
        """The ranks that it names: role, and rank, None for any."""
        found = [match for target in self.targets if (match := RANK.fullmatch(kind_of(target)[1]))]
        return [(match[1], None if match[2] == "*" else int(match[2])) for match in found]


def kind_of(target: str) -> tuple[Any, str]:
    """Return the kind of a target's failure, and its victim: ``("rank", "trainer/1")``; "" for any."""
    kind, _, who = target.partition(":")
    return ("rank", target) if RANK.fullmatch(target) else (kind, who)


def parse(text: str) -> Rehearsal:
    """Parse the text. Raises `JobFileError` with the error and the valid forms."""
    values: dict[str, Any] = {}
    key = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals and key == "targets":
            values[key] = (*values[key], part)
            continue
        key = name
        if key in ("kills", "seed") and value.isdigit():
            values[key] = int(value)
        elif key == "targets":
            values[key] = (value,)
        elif key in ("kills", "seed"):
            raise JobFileError(f"{key} is a whole number, not {value!r}", where=WHERE, remedy=f"write {key}=10")
        else:
            raise JobFileError(f"there is no {key!r}", where=WHERE, remedy=nearest(key, ("kills", "seed", "targets")))
    for target in values.get("targets", ()):
        kind, who = kind_of(target)
        if kind not in TARGETS:
            remedy = f"{nearest(kind, TARGETS)}; ROLE/RANK is one rank"
            raise JobFileError(f"there is no target {target!r}", where=WHERE, remedy=remedy)
        if target == "child":
            what = "the target 'child' needs the name of the rank that starts processes"
            raise JobFileError(
                what, where=WHERE, remedy="write child:environment/* for any rank of the role environment"
            )
        if ":" in target and not ((who and kind in OF_NAMES) or (RANK.fullmatch(who) and kind in OF_RANKS)):
            remedy = "name a rank (trainer/1, stop:trainer/1, full:trainer/*, child:box/*), an agent "
            remedy += "(agent:NAME, disk:NAME, zygote:NAME) or a node (node:NAME)"
            raise JobFileError(f"target {target!r} names no process that it fits", where=WHERE, remedy=remedy)
    return Rehearsal(**values)
