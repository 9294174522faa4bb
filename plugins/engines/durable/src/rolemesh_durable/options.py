"""Options of the durable engine in a job file, under ``engine.options``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from rolemesh.errors import OptionsError
from rolemesh.job_file.model import Named, Use
from rolemesh.job_file.places import flow_yaml
from rolemesh.plugins.select import Selection

__all__ = ["DurableOptions", "Hang", "Retention", "Snapshots", "Stragglers", "Transports", "options_in"]

TAKEN: JsonDict = {"needs": "enabled or failover or persist_every"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Snapshots(_Strict):
    """When ranks write snapshots of their state: to shared memory, and from there to disk."""

    enabled: bool | None = None
    """Take snapshots while the job runs. Default: yes if the job has a failover ladder, sets `persist_every`, or is
    resumed."""
    every: int = Field(default=1, ge=1, json_schema_extra=TAKEN)
    """Steps between snapshots to shared memory."""
    every_s: float | None = Field(default=None, ge=0, json_schema_extra=TAKEN)
    """Maximum time in seconds that a rank may skip snapshots. Default: computed from the duration of a snapshot."""
    persist_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints on disk. Default: ten, or one if steps take seconds; more if writing one takes long."""
    keep: Literal["none", "last"] | Annotated[int, Field(ge=1)] = 2
    """Number of checkpoints to keep on disk, the newest first. A job without `enabled` writes one, after its last step.
    'last' keeps one; 'none' deletes all when the job is done."""
    replicas: int = Field(default=0, ge=0, le=1, json_schema_extra=TAKEN)
    """Number of copies of each snapshot in the memory of another node: 0 or 1."""


class Hang(_Strict):
    """When the engine treats silence as a hang."""

    after_s: float | None = Field(default=1800.0, gt=0)
    """Seconds without progress of any rank before the job counts as hung; null: never."""
    stacks: bool = Field(default=True, json_schema_extra={"needs": "after_s"})
    """Take the stacks of the culprit with py-spy."""


class Stragglers(_Strict):
    """When the engine treats a rank as a straggler, much slower than the others of its role."""

    factor: float = Field(default=2.0, gt=1)
    """Factor by which a straggler's step time exceeds the median of the others."""
    for_s: float = Field(default=60.0, gt=0)
    """Seconds for which a rank must be slower before it counts as a straggler."""


class Retention(_Strict):
    """How long producers keep sent values for consumers that restart."""

    enabled: bool | None = None
    """Keep sent values. Default: yes if the job has a failover ladder."""
    max_bytes: int = Field(default=1 << 30, ge=1 << 20, json_schema_extra={"needs": "enabled or failover"})
    """Maximum size of kept values per rank in bytes. A producer above it waits for the next commit."""


class Transports(_Strict):
    """How values move between ranks."""

    local: Named = Field(default=Use(use="shm"), json_schema_extra={"plugins": "transports"})
    """Transport between ranks on the same node."""
    remote: Named = Field(default=Use(use="tcp"), json_schema_extra={"plugins": "transports"})
    """Transport between ranks on different nodes."""
    each: dict[str, str] = {}
    """Transports of single edges, such as ``"trainer.weights -> rollout.load": delta``. `plugins.transports` lists
    them."""


class DurableOptions(_Strict):
    """Options that only the durable engine reads."""

    grant: int | None = Field(default=None, ge=1)
    """Number of steps that ranks may run ahead of the slowest rank. Default: the steps of a few seconds."""
    state: str = "sqlite"
    """Place of the journal: 'sqlite' (a file in the run's folder), or the URL of a database."""
    lease_s: float = Field(default=10.0, gt=0)
    """Seconds after which a job ends itself if its driver is gone."""
    priority: int = Field(default=0, json_schema_extra={"needs": "backend != local"})
    """Priority among jobs that wait for resources of the same Ray cluster: a point is worth 100 later jobs."""
    room_wait_s: float = Field(default=30, ge=0, json_schema_extra={"needs": "backend != local"})
    """Seconds to wait for resources that other jobs hold."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Maximum number of seconds until all ranks are ready."""
    stop_grace_s: float = Field(default=5.0, ge=0)
    """Seconds between the request to stop and the kill of a rank. The first half is for the operator that runs."""
    hang: Hang = Field(default_factory=Hang)
    """When the engine treats silence as a hang."""
    stragglers: Stragglers = Field(default_factory=Stragglers)
    """When the engine treats a rank as a straggler."""
    snapshots: Snapshots = Field(default_factory=Snapshots)
    """When ranks write snapshots."""
    transports: Transports = Field(default_factory=Transports)
    """How values move between ranks."""
    retention: Retention = Field(default_factory=Retention)
    """How long producers keep sent values."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        if isinstance(old := given.get("edges"), dict):
            kept = {key: old[key] for key in old if key == "retention"}
            new = kept | ({"transports": {key: old[key] for key in old if key not in kept}} if old != kept else {})
            raise OptionsError("edges is no option any more", remedy=f"write engine: {{options: {flow_yaml(new)}}}")
        return given


def options_in(selection: Selection) -> DurableOptions:
    """The options of a job that was prepared for this engine, or for one that is derived from it."""
    options = selection.engine.options
    assert isinstance(options, DurableOptions), f"the job was prepared for {selection.engine.record.what}"
    return options
