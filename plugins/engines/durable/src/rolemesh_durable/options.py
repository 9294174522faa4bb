"""Options of the durable engine in a job file, under ``engine.options``."""

from __future__ import annotations

from copy import deepcopy
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from rolemesh.errors import OptionsError
from rolemesh.job_file.model import Named, Use
from rolemesh.job_file.places import flow_yaml
from rolemesh.plugins.select import Selection

__all__ = ["DurableOptions", "Hang", "Retention", "Snapshots", "Transports", "options_in"]

TAKEN: JsonDict = {"needs": "enabled or failover or persist_every"}
Distance: TypeAlias = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^\d+(\.\d+)?s$")]
FORMER = {
    "edges": "its keys are in transports and retention",
    "hang.stacks": "the engine takes the stacks of the culprit whenever it may",
    "retention.enabled": "a job with a failover ladder keeps sent values",
    "snapshots.every_s": "snapshots.every may be a time",
    "stragglers": "a straggler needs twice as long as the others for 60 s",
}
"""The keys that are no options any more, and the reasons."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Snapshots(_Strict):
    """When ranks write snapshots of their state: to shared memory, and from there to disk."""

    enabled: bool | None = None
    """Take snapshots while the job runs. Default: yes if the job has a failover ladder, sets `persist_every`, or is
    resumed."""
    every: Distance = Field(default=1, json_schema_extra=TAKEN)
    """Steps between snapshots to shared memory; or a time such as '5s', the longest for which a rank skips snapshots.
    Default: each step, and a rank skips those that would take more than a hundredth of its time."""
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


class Retention(_Strict):
    """How long producers keep sent values for consumers that restart, in a job with a failover ladder."""

    max_bytes: int = Field(default=1 << 30, ge=1 << 20, json_schema_extra={"needs": "failover"})
    """Maximum size of kept values per rank in bytes. A producer above it waits for the next commit."""


class Transports(_Strict):
    """How values move between ranks."""

    local: Named = Field(default=Use(use="shm"), json_schema_extra={"plugins": "transports"})
    """Transport between ranks on the same node."""
    remote: Named = Field(default=Use(use="tcp"), json_schema_extra={"plugins": "transports"})
    """Transport between ranks on different nodes."""
    weights: Named = Field(default=Use(use="delta"), json_schema_extra={"plugins": "transports"})
    """Transport between nodes of the edges that carry named tensors (`Sharded`). Default: delta; if `remote` is given,
    that."""
    each: dict[str, str] = {}
    """Transports of single edges, such as ``"trainer.weights -> rollout.load": delta``. `plugins.transports` lists
    them."""

    @model_validator(mode="before")
    @classmethod
    def _for_all(cls, given: Any) -> Any:
        """Let `remote` be for all edges."""
        return {"weights": given["remote"], **given} if isinstance(given, dict) and "remote" in given else given


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
    snapshots: Snapshots = Field(default_factory=Snapshots)
    """When ranks write snapshots."""
    transports: Transports = Field(default_factory=Transports)
    """How values move between ranks."""
    retention: Retention = Field(default_factory=Retention)
    """How long producers keep sent values."""

    @model_validator(mode="before")
    @classmethod
    def _former(cls, given: Any) -> Any:
        """Refuse keys that are no options any more, with the options that mean the same."""
        new, found = deepcopy(given), list[str]()
        for key, why in FORMER.items():
            section, _, name = key.rpartition(".")
            inside = new.get(section) if section else new
            if not isinstance(inside, dict) or name not in inside:
                continue
            found.append(f"{key} is no option any more: {why}")
            old = inside.pop(name)
            if name == "edges" and isinstance(old, dict):
                new |= {to: each for to, each in (("retention", old.pop("retention", {})), ("transports", old)) if each}
            if name == "every_s" and old is not None:
                inside["every"] = f"{old}s"
        if found:
            kept = {key: each for key, each in new.items() if each != {}}
            raise OptionsError("; ".join(found), remedy=f"write engine: {{options: {flow_yaml(kept)}}}")
        return given


def options_in(selection: Selection) -> DurableOptions:
    """The options of a job that was prepared for this engine, or for one that is derived from it."""
    options = selection.engine.options
    assert isinstance(options, DurableOptions), f"the job was prepared for {selection.engine.record.what}"
    return options
