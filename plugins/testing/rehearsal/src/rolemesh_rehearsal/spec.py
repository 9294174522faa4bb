"""What ``--chaos`` asks for: ``kills=10,seed=7,targets=rank,agent,master``."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from rolemesh.errors import JobFileError, nearest

__all__ = ["Rehearsal", "Target", "parse"]

Target: TypeAlias = Literal["rank", "agent", "master", "node", "stop", "disk", "zygote", "full", "stall", "clock"]
TARGETS: tuple[str, ...] = get_args(Target)
WHERE = "--chaos"


class Rehearsal(msgspec.Struct, frozen=True):
    """`kills` failures at moments and of kinds that `seed` decides.

    rank: SIGKILL, ``os._exit`` or an exception in an operator. agent, master: SIGKILL. stop: SIGSTOP of a rank, an
    agent or the master. node: everything on a node is lost. disk: the next snapshot finds the disk full. zygote:
    SIGKILL of a zygote. full: no file of the master, an agent or a rank can grow for 3 s, neither on disk nor in shared
    memory. stall: the journal's database takes no write for 3 s, nor does the file system of the run's folder. clock:
    the wall clock of the master or an agent steps by an hour.
    """

    kills: int = 5
    seed: int = 0
    targets: tuple[Target, ...] = ("rank", "agent", "master")


def parse(text: str) -> Rehearsal:
    """Raises `JobFileError` with what is wrong and what is possible."""
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
        if target not in TARGETS:
            raise JobFileError(f"there is no target {target!r}", where=WHERE, remedy=nearest(target, TARGETS))
    return Rehearsal(**values)
