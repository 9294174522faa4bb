"""The job file as pydantic models; `rolemesh.spec` loads it from YAML with places, overrides and environment."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from rolemesh.spec.world_size import WorldSizeField

__all__ = [
    "EdgesSpec",
    "HangSpec",
    "JobSpec",
    "MetricsSpec",
    "Resources",
    "RetentionSpec",
    "RoleSpec",
    "RuntimeEnv",
    "SnapshotsSpec",
    "Use",
]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Use(_Strict):
    """A plugin selected by name, with its options: the same shape everywhere in a job file."""

    use: str = Field(description="Name of an installed plugin, or 'distribution:name' where two offer one name.")
    options: dict[str, Any] = Field(default_factory=dict, description="The plugin's own options.")


class Resources(_Strict):
    """What one rank needs."""

    cpu: float = Field(default=1.0, ge=0, description="CPU cores; fractions allowed, 0 for a rank that hardly works.")
    gpu: float = Field(default=0.0, ge=0, description="GPUs; a fraction shares one device.")
    custom: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="Custom Ray resources by name."
    )


class RuntimeEnv(_Strict):
    """What a role's processes find around them, apart from the other roles'."""

    pip: list[str] = Field(
        default_factory=list,
        description="What pip installs for this role, on top of what is installed: requirements, one each; paths of "
        "wheels are relative to the job file.",
    )
    env_vars: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict, description="Environment variables of this role's processes."
    )
    working_dir: str | None = Field(
        default=None,
        description="The folder that this role's processes run in and import from first, relative to the job file.",
    )


class RoleSpec(Use):
    """A named group of ranks that run the same workload."""

    world_size: WorldSizeField = Field(default=1, description="Number of ranks; of an elastic role `{min: 1, max: 8}`.")
    resources: Resources = Field(default_factory=Resources, description="What each rank needs.")
    runtime_env: RuntimeEnv = Field(
        default_factory=RuntimeEnv, description="Packages, variables and a folder of this role's own."
    )


class SnapshotsSpec(_Strict):
    """When ranks write their state: into shared memory, and from there to disk."""

    enabled: bool | None = Field(default=None, description="Default: on where the failover ladder is not empty.")
    every: int = Field(default=1, ge=1, description="Steps between snapshots in shared memory.")
    persist_every: int = Field(default=10, ge=1, description="Steps between snapshots on disk.")
    keep: int = Field(default=2, ge=1, description="Persisted snapshots to keep.")
    replicas: int = Field(default=0, ge=0, le=1, description="Copies of each snapshot in another node's memory.")


class HangSpec(_Strict):
    """When silence is called a hang."""

    after_s: float | None = Field(
        default=1800.0, gt=0, description="Seconds in which no rank gets any further; null: never."
    )
    stacks: bool = Field(default=True, description="Take the culprit's stacks with py-spy.")


class RetentionSpec(_Strict):
    """How long producers keep what they sent, for consumers that come back."""

    enabled: bool | None = Field(default=None, description="Default: on where the failover ladder is not empty.")
    max_bytes: int = Field(default=1 << 30, ge=1 << 20, description="Per rank; a producer waits for a commit above it.")


class EdgesSpec(_Strict):
    """Defaults of all edges."""

    credits: int = Field(default=2, ge=1, description="Values a producer may be ahead on an edge, beyond its lag.")
    local: str = Field(default="shm", description="Transport between ranks on one node.")
    remote: str = Field(default="tcp", description="Transport between ranks on different nodes.")
    retention: RetentionSpec = Field(default_factory=RetentionSpec)
    sizes: dict[str, ByteSize] = Field(
        default_factory=dict,
        description="What a step's call of an operator returns, all ranks together, by its label, e.g. "
        "{rollout.generate: 20MB}: strategies keep what moves most on one node. `rolemesh plan --profile` measures it.",
    )


class MetricsSpec(_Strict):
    """How metrics are gathered."""

    every: int = Field(default=1, ge=1, description="Steps per line of metrics.jsonl (averaged over them).")


class JobSpec(_Strict):
    """One job file."""

    name: str = Field(description="Name of the job and of its folder under runs/.")
    flow: str = Field(description="The flow: 'package.module:name' or 'file.py:name', relative to the job file.")
    steps: int = Field(ge=1, description="Number of steps to run.")
    seed: int = Field(default=0, ge=0, description="Seed of everything random in the job.")
    params: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the flow function.")
    roles: dict[str, RoleSpec] = Field(min_length=1, description="The roles by name.")
    placement: list[Use] = Field(
        default_factory=lambda: [Use(use="pack")], description="One strategy or a list, applied in order."
    )
    failover: list[Use] = Field(default_factory=list, description="The ladder: levels in the order they are tried.")
    diagnosers: list[Use] = Field(
        default_factory=lambda: [Use(use="standard")], description="Who judges a failure; the first that can, does."
    )
    hang: HangSpec = Field(default_factory=HangSpec)
    snapshots: SnapshotsSpec = Field(default_factory=SnapshotsSpec)
    edges: EdgesSpec = Field(default_factory=EdgesSpec)
    metrics: MetricsSpec = Field(default_factory=MetricsSpec)
    observers: list[Use] = Field(default_factory=lambda: [Use(use="console")], description="Who watches the job.")
    grant: int = Field(default=1024, ge=1, description="K: steps that ranks may run ahead of the last commit.")
    state: str = Field(default="sqlite", description="The journal: 'sqlite' (in the run's folder) or a database's URL.")
    lease_s: float = Field(default=10.0, gt=0, description="Seconds without its driver after which a job ends itself.")
    priority: int = Field(default=0, description="Of jobs that wait for room on a Ray, the highest goes first.")
    room_wait_s: float = Field(default=30, ge=0, description="Seconds to wait for room that other jobs have.")
    start_timeout_s: float = Field(default=600.0, gt=0, description="Seconds that all ranks may take to get ready.")
    stop_grace_s: float = Field(
        default=5.0,
        ge=0,
        description="Seconds between asking a rank to stop and killing it; half of them to finish its operator.",
    )

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("a job name has letters, digits, '.', '_' and '-', at most 63 of them")
        return name

    @field_validator("roles")
    @classmethod
    def _roles(cls, roles: dict[str, RoleSpec]) -> dict[str, RoleSpec]:
        for name in roles:
            if not name.isidentifier() or name.startswith("_"):
                raise ValueError(f"role {name!r} is not a Python identifier, so a flow could not call it")
        return roles

    @model_validator(mode="before")
    @classmethod
    def _one_placement(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("placement"), dict):
            data = {**data, "placement": [data["placement"]]}
        return data
