"""The API of an observer plugin: its base class, and the plain data that its hooks receive."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from rolemesh.api.plugin import Plugin

__all__ = ["AgentStatus", "JobStatus", "Observer", "RankStatus"]
__all__ += ["Event", "Missed", "RoleTimes", "RunInfo", "StepMetrics"]


class RunInfo(msgspec.Struct, frozen=True):
    """A run: its name, folder, length and roles (world size by name), and the operator labels in
    the flow's order.

    `origin` is the folder of the persisted snapshot that it was resumed from, "" if it was not;
    `base` is the job file's folder. `steps` is None for a job without an end.
    """

    name: str
    run_dir: str
    steps: int | None
    roles: dict[str, int]
    operators: tuple[str, ...]
    backend: str = ""
    origin: str = ""
    base: str = ""


class Event(msgspec.Struct, frozen=True):
    """A transition in the journal. `seq` counts from 1 without gaps, `time` is seconds since
    1970."""

    seq: int
    epoch: int
    time: float
    kind: str
    data: dict[str, Any] = {}


class RoleTimes(msgspec.Struct):
    """Seconds of a role's ranks (mean over the ranks) in one line's steps."""

    computing_s: float = 0.0
    waiting_s: float = 0.0
    blocked_s: float = 0.0


class StepMetrics(msgspec.Struct, gc=False):
    """One line of ``metrics.jsonl``: step `step` (the last of `steps` steps where ``metrics.every``
    is above 1).

    `values` are the metrics by name, over all calls of an operator in the step; where several
    operators report one name, it is the first's in the flow. `operators` are the same by operator
    label, call by call, `roles` where the time went, `staleness` the lag of each edge that has one
    plus what workloads report under that name, `records` attached JSON values.
    """

    step: int
    steps: int
    time: float
    values: dict[str, float] = {}
    operators: dict[str, dict[str, float]] = {}
    roles: dict[str, RoleTimes] = {}
    staleness: dict[str, float] = {}
    records: dict[str, Any] = {}


class RankStatus(msgspec.Struct, frozen=True):
    """A rank now. `phase` is what it does: computing, waiting (for input), blocked (on credit),
    turn (waiting for its turn on its slot), gathering (waiting for its group), idle. `doing` is the
    operator or edge's peer, with what the operator tells of its progress."""

    role: str
    rank: int
    node: str
    pid: int
    state: str
    step: int
    phase: str = ""
    doing: str = ""
    generation: int = 0


class AgentStatus(msgspec.Struct, frozen=True):
    """An agent now."""

    agent: str
    node: str
    pid: int
    state: str


class JobStatus(msgspec.Struct, frozen=True):
    """The whole job now.

    `committed` and `persisted` are the newest steps durable and on disk, -1 for none. `warnings`
    say what is wrong right now and is being waited for, such as a journal that cannot be written
    because the disk is full. `steps` is None for a job without an end; `finishing` is why one is
    about to end in good order, "" otherwise. `resizing` is how many ranks roles are about to have,
    `resources` what roles have per rank that were given others than they asked for.
    """

    name: str
    state: str
    epoch: int
    committed: int
    steps: int | None
    started: float
    master_pid: int
    master_node: str
    agents: tuple[AgentStatus, ...] = ()
    ranks: tuple[RankStatus, ...] = ()
    message: str = ""
    persisted: int = -1
    warnings: tuple[str, ...] = ()
    finishing: str = ""
    resizing: dict[str, int] = {}
    resources: dict[str, dict[str, float]] = {}


class Missed(msgspec.Struct, frozen=True):
    """Notifications that were dropped because an observer fell behind.

    `events`: number of events, with `seq` from `first_event` to `last_event`. `lines`: number of
    lines of metrics, for steps `first_step` to `last_step`. All of them are in the run's
    ``events.jsonl`` and ``metrics.jsonl``.
    """

    events: int = 0
    first_event: int = 0
    last_event: int = 0
    lines: int = 0
    first_step: int = 0
    last_step: int = 0

    def __bool__(self) -> bool:
        return bool(self.events or self.lines)

    def __str__(self) -> str:
        events = (
            f"{self.events} events ({self.first_event} to {self.last_event})" if self.events else ""
        )
        lines = (
            f"{self.lines} lines of metrics (steps {self.first_step} to {self.last_step})"
            if self.lines
            else ""
        )
        return " and ".join(filter(None, (events, lines)))


class Observer(Plugin):
    """Base class of observers. One instance per job and side; hooks are marked with
    `rolemesh.hookimpl`."""

    side: ClassVar[Literal["master", "driver"]] = "master"
    """master: sees everything exactly once, also detached. driver: lives where a person watches,
    may come and go."""
