"""The API of an observer plugin: its base class, and the plain data that its hooks receive."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from rolemesh.api.plugin import Plugin
from rolemesh.api.rank_ref import OfRank

__all__ = ["AgentStatus", "JobStatus", "Observer", "RankStatus"]
__all__ += ["Event", "Missed", "RoleTimes", "RunInfo", "StepMetrics"]


class RunInfo(msgspec.Struct, frozen=True):
    """A run of a job.

    - `steps`: number of steps; None for a job without an end.
    - `roles`: world size by role.
    - `operators`: labels of the operator calls, in the order of the flow.
    - `base`: the folder of the job file.
    - `origin`: folder of the checkpoint that the run was resumed from, "" if it was not resumed.
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
    """Seconds that a role's ranks spent in the steps of one line of metrics, averaged over the
    ranks. Computing is in operators, and in services that ran while no operator did."""

    computing_s: float = 0.0
    waiting_s: float = 0.0
    blocked_s: float = 0.0


class StepMetrics(msgspec.Struct, gc=False):
    """One line of ``metrics.jsonl``: step `step`, the last of the `steps` steps that the line
    covers. Metrics are per step, whatever `steps` is; the times of roles are of all these steps.

    - `values`: metrics by name, over all calls of an operator in the step. If several operators
      report the same name, the value of the first one in the flow.
    - `operators`: metrics by operator label, one entry per call; those of services by
      ``role.service``, and those that a role without operators reports elsewhere by ``role``.
    - `roles`: where each role spent its time.
    - `staleness`: the lag of each edge that has one, and what workloads report under that name.
    - `records`: JSON values that workloads attached.
    """

    step: int
    steps: int
    time: float
    values: dict[str, float] = {}
    operators: dict[str, dict[str, float]] = {}
    roles: dict[str, RoleTimes] = {}
    staleness: dict[str, float] = {}
    records: dict[str, Any] = {}


class RankStatus(OfRank, frozen=True):
    """A rank now.

    - `phase`: computing, waiting (for input), blocked (on credit), turn (waiting for its turn on
      its slot), loading (for its turn), gathering (waiting for its group), calling (waiting for an
      answer), serving (calls), following (waiting for callers), or idle (until the master lets it
      run further).
    - `doing`: the operator, or the peer of the edge, with the progress that the operator reports.
    """

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

    - `committed`, `persisted`: newest step that is durable, and newest one on disk; -1 if there is
      none.
    - `warnings`: current problems that the job waits on, such as a journal that cannot be written
      because the disk is full.
    - `steps`: number of steps; None for a job without an end.
    - `finishing`: why the job is about to end in good order, "" if it is not.
    - `resizing`: the coming number of ranks by role, while a resize is under way.
    - `resources`: resources per rank of the roles whose resources a failover level changed.
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
    """Base class of observers. Each job has one instance per side. Mark hooks with
    `rolemesh.hookimpl`."""

    side: ClassVar[Literal["master", "driver"]] = "master"
    """The process in which the observer runs. "master": it sees everything exactly once, also in a
    detached job. "driver": it runs where the user watches, and may come and go."""
