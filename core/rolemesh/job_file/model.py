"""The job file as pydantic models; `rolemesh.job_file` loads it from YAML with places, overrides
and environment."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from rolemesh.job_file.world_size import WorldSizeField

if TYPE_CHECKING:
    from rolemesh.api.observer import StepMetrics


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Use(_Strict):
    """A plugin selected by name, with its options: the same shape everywhere in a job file."""

    use: str
    """An installed plugin: 'name', or 'distribution:name'; or a class, as 'file.py:Class'."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The plugin's own options."""


Named = Annotated[
    Use,
    BeforeValidator(
        lambda use: {"use": use} if isinstance(use, str) else use, json_schema_input_type=str | Use
    ),
]
"""A plugin selected by its bare name, or with options."""


class EngineUse(_Strict):
    """The engine that runs a job, with its options."""

    use: str | None = None
    """The engine's name; null: the default one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The engine's own options."""


EngineField = Annotated[
    EngineUse,
    BeforeValidator(
        lambda use: {"use": use} if isinstance(use, str) else use,
        json_schema_input_type=str | EngineUse,
    ),
]
"""An engine selected by its bare name, or with options."""


OneOrMore = Annotated[
    list[Use], BeforeValidator(lambda uses: [uses] if isinstance(uses, dict) else uses)
]


class Resources(_Strict):
    """What one rank needs."""

    cpu: float = Field(default=1.0, ge=0)
    """CPU cores; fractions allowed, 0 for a rank that hardly works."""
    gpu: float = Field(default=0.0, ge=0)
    """GPUs; a fraction shares one device."""
    memory_gb: float = Field(default=0.0, ge=0)
    """Memory, in 10^9 bytes. It is reserved, and nobody is held to it."""
    custom: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Custom resources of the cluster by name."""
    most: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """How much of them a failover level may give a rank, by name: `cpu`, `gpu`, `memory_gb`, or a
    custom one."""


class RuntimeEnv(_Strict):
    """What a role's processes find around them, apart from the other roles'. An engine whose roles
    have processes of their own makes it, and checks `pip` and `working_dir`."""

    pip: list[str] = Field(default_factory=list)
    """What pip installs for this role, on top of what is installed: requirements, one each; paths
    of wheels are relative to the job file."""
    env_vars: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict
    )
    """Environment variables of this role's processes."""
    working_dir: str | None = None
    """The folder that this role's processes run in and import from first, relative to the job file.
    """


class RoleSpec(Use):
    """A named group of ranks that run the same workload."""

    world_size: WorldSizeField = 1
    """Number of ranks; of an elastic role `{min: 1, max: 8}`, or `{min: 1, max: 8, start: 2}`."""
    resources: Resources = Field(default_factory=Resources)
    """What each rank needs."""
    runtime_env: RuntimeEnv = Field(default_factory=RuntimeEnv)
    """Packages, variables and a folder of this role's own."""


class EdgesSpec(_Strict):
    """Defaults of all edges."""

    credits: int | None = Field(default=None, ge=1)
    """Values a producer may be ahead on an edge, beyond its lag. Default: two, or many small ones.
    """
    sizes: dict[str, ByteSize] = Field(default_factory=dict)
    """What a step's call of an operator returns, all ranks together, by its label, e.g.
    {rollout.generate: 20MB}: strategies keep what moves most on one node. `rolemesh plan --profile`
    measures it (rolemesh-subgraph)."""


class MetricsSpec(_Strict):
    """How metrics are gathered."""

    every: int = Field(default=1, ge=1)
    """Steps per line of metrics.jsonl (averaged over them)."""


class UntilSpec(_Strict):
    """What ends a job in good order: whichever of its conditions holds first."""

    metric: str | None = None
    """A metric of metrics.jsonl, as 'name' or 'role.operator/name'."""
    at_least: float | None = None
    """Finished when the metric is this or more."""
    at_most: float | None = None
    """Finished when the metric is this or less."""
    max_s: float | None = Field(default=None, gt=0)
    """Finished so many seconds after the job's start."""

    def reason(self, line: StepMetrics) -> str:
        """Why the job is finished with this line of metrics; "" if it is not."""
        call, _, name = (self.metric or "").rpartition("/")
        value = (line.operators.get(call, {}) if call else line.values).get(name, math.nan)
        least = self.at_least
        most = self.at_most
        if (least is not None and value >= least) or (most is not None and value <= most):
            bound = (
                f"at least {least:g}"
                if least is not None and value >= least
                else f"at most {most:g}"
            )
            return f"{self.metric} = {value:g} is {bound} at step {line.step}"
        return ""

    @model_validator(mode="after")
    def _whole(self) -> UntilSpec:
        if (self.metric is not None) != (self.at_least is not None or self.at_most is not None):
            raise ValueError("a metric and at_least or at_most go together")
        return self


class JobSpec(_Strict):
    """One job file."""

    name: str
    """Name of the job and of its folder under runs/."""
    flow: str
    """The flow: 'package.module:name' or 'file.py:name', relative to the job file."""
    steps: Annotated[int, Field(ge=1)] | None
    """Number of steps to run; null: until it is finished."""
    until: UntilSpec = Field(default_factory=UntilSpec)
    """What finishes the job before its last step."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random in the job."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the flow function."""
    roles: dict[str, RoleSpec] = Field(min_length=1)
    """The roles by name."""
    placement: OneOrMore = Field(default_factory=lambda: [Use(use="pack")])
    """One strategy or a list, applied in order."""
    failover: list[Use] = Field(default_factory=list)
    """The ladder: levels in the order they are tried."""
    diagnosers: list[Use] = Field(default_factory=lambda: [Use(use="standard")])
    """Who judges a failure; the first that can, does."""
    edges: EdgesSpec = Field(default_factory=EdgesSpec)
    metrics: MetricsSpec = Field(default_factory=MetricsSpec)
    observers: list[Use] = Field(default_factory=lambda: [Use(use="console")])
    """Who watches the job."""
    plugins: dict[str, list[Named]] = Field(default_factory=dict)
    """Plugins of kinds that other distributions declare, by the kind's name."""
    engine: EngineField = Field(default_factory=EngineUse)
    """The engine that runs the job, and its options."""

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
                raise ValueError(
                    f"role {name!r} is not a Python identifier, so a flow could not call it"
                )
        return roles
