"""Options of this engine in a job file, under ``engine.options``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from rolemesh.job_file.model import Named, Use
from rolemesh.plugins.select import Selection

__all__ = ["DurableOptions", "Edges", "Hang", "Retention", "Snapshots", "Stragglers", "options_in"]

TAKEN: JsonDict = {"needs": "enabled or failover or persist_every"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Snapshots(_Strict):
    """When ranks write their state: into shared memory, and from there to disk."""

    enabled: bool | None = None
    """Take snapshots while the job runs. Default: on if there is a failover ladder, or `persist_every` is given."""
    every: int = Field(default=1, ge=1, json_schema_extra=TAKEN)
    """Steps between snapshots in shared memory."""
    every_s: float | None = Field(default=None, ge=0, json_schema_extra=TAKEN)
    """Maximum number of seconds in which a rank leaves snapshots out. Default: computed from what one takes."""
    persist_every: int | None = Field(default=None, ge=1)
    """Steps between snapshots on disk."""
    keep: Literal["none", "last"] | Annotated[int, Field(ge=1)] = 2
    """Number of snapshots on disk that stay, the newest first. A job without `enabled` writes one, after its last
    step. 'last' keeps one; 'none' leaves none when the job is done."""
    replicas: int = Field(default=0, ge=0, le=1, json_schema_extra=TAKEN)
    """Copies of each snapshot in another node's memory."""


class Hang(_Strict):
    """When silence is called a hang."""

    after_s: float | None = Field(default=1800.0, gt=0)
    """Seconds in which no rank gets any further; null: never."""
    stacks: bool = Field(default=True, json_schema_extra={"needs": "after_s"})
    """Take the culprit's stacks with py-spy."""


class Stragglers(_Strict):
    """When a rank is called much slower than the others of its role."""

    factor: float = Field(default=2.0, gt=1)
    """A straggler needs more than this factor times the median of the others for a step."""
    for_s: float = Field(default=60.0, gt=0)
    """Seconds for which a rank is slower before it is called a straggler."""


class Retention(_Strict):
    """How long producers keep what they sent, for consumers that come back."""

    enabled: bool | None = None
    """Default: on where the failover ladder is not empty."""
    max_bytes: int = Field(default=1 << 30, ge=1 << 20, json_schema_extra={"needs": "enabled or failover"})
    """Maximum number of bytes per rank; a producer waits for a commit above it."""


class Edges(_Strict):
    """How values get from rank to rank."""

    local: Named = Field(default=Use(use="shm"), json_schema_extra={"plugins": "transports"})
    """Transport between ranks on one node."""
    remote: Named = Field(default=Use(use="tcp"), json_schema_extra={"plugins": "transports"})
    """Transport between ranks on different nodes."""
    retention: Retention = Field(default_factory=Retention)
    """How long producers keep what they sent."""


class DurableOptions(_Strict):
    """The job's keys that this engine alone reads."""

    grant: int | None = Field(default=None, ge=1)
    """K: steps that ranks may run ahead of what all have finished. Default: what takes them some seconds."""
    state: str = "sqlite"
    """The journal: 'sqlite' (in the run's folder) or a database's URL."""
    lease_s: float = Field(default=10.0, gt=0)
    """Seconds without its driver after which a job ends itself."""
    priority: int = Field(default=0, json_schema_extra={"needs": "backend != local"})
    """Among the jobs that wait for room on a Ray, the one with the highest priority goes first."""
    room_wait_s: float = Field(default=30, ge=0, json_schema_extra={"needs": "backend != local"})
    """Seconds to wait for room that other jobs have."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that all ranks may take to get ready."""
    stop_grace_s: float = Field(default=5.0, ge=0)
    """Seconds between asking a rank to stop and killing it; half of them to finish its operator."""
    hang: Hang = Field(default_factory=Hang)
    """When silence is called a hang."""
    stragglers: Stragglers = Field(default_factory=Stragglers)
    """When a rank is called much slower than the others of its role."""
    snapshots: Snapshots = Field(default_factory=Snapshots)
    """When ranks write their state."""
    edges: Edges = Field(default_factory=Edges)
    """How values get from rank to rank."""


def options_in(selection: Selection) -> DurableOptions:
    """The options of a job that was prepared for this engine, or for one that is derived from it."""
    options = selection.engine.options
    assert isinstance(options, DurableOptions), f"the job was prepared for {selection.engine.record.what}"
    return options
