"""The pydantic models of the job file. `rolemesh.job_file.load` reads it from YAML, with places,
overrides and environment variables."""

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
    """A plugin selected by name, with its options. The form is the same in all of a job file."""

    use: str
    """An installed plugin, as 'name' or 'distribution:name', or a class, as 'file.py:Class'."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The plugin's own options."""


def _use(value: Any) -> Any:
    return {"use": value} if isinstance(value, str) else value


Named = Annotated[Use, BeforeValidator(_use, json_schema_input_type=str | Use)]
"""A plugin selected by its bare name, or with options."""


class EngineUse(_Strict):
    """The engine that runs the job, with its options."""

    use: str | None = None
    """Name of the engine. Default (null): the default engine."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The engine's own options."""


EngineField = Annotated[EngineUse, BeforeValidator(_use, json_schema_input_type=str | EngineUse)]
"""An engine selected by its bare name, or with options."""


OneOrMore = Annotated[
    list[Use], BeforeValidator(lambda uses: [uses] if isinstance(uses, dict) else uses)
]


class Resources(_Strict):
    """The resources of one rank."""

    cpu: float = Field(default=1.0, ge=0)
    """CPU cores of each rank. Fractions are allowed; 0 suits a rank that is almost idle."""
    gpu: float = Field(default=0.0, ge=0)
    """GPUs of each rank. Ranks with a fraction share a device."""
    memory_gb: float = Field(default=0.0, ge=0)
    """Memory of each rank in units of 10^9 bytes. It is reserved, but no limit is enforced.
    Default: 0, none is reserved."""
    custom: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Amounts of the cluster's custom resources, by name."""
    most: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Maximum amounts that a failover level may raise the resources to, by name: `cpu`, `gpu`,
    `memory_gb`, or a custom one."""


class RuntimeEnv(_Strict):
    """The environment of one role's processes. An engine that starts processes per role prepares
    it, and checks `pip` and `working_dir`."""

    pip: list[str] = Field(default_factory=list)
    """Requirements that pip installs for this role, in addition to the installed packages. Paths of
    wheels are relative to the job file."""
    env_vars: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict
    )
    """Environment variables for the role's processes."""
    working_dir: str | None = None
    """Working folder of the role's processes, and the first one that they import from. It is
    relative to the job file."""


class RoleSpec(Use):
    """A named group of ranks that run the same workload."""

    world_size: WorldSizeField = 1
    """Number of ranks. An elastic role has a range: `{min: 1, max: 8}`, or `{min: 1, max: 8, start:
    2}`."""
    resources: Resources = Field(default_factory=Resources)
    """Resources of each rank."""
    runtime_env: RuntimeEnv = Field(default_factory=RuntimeEnv)
    """Packages, environment variables and working folder of this role only."""


class EdgesSpec(_Strict):
    """Defaults for all edges."""

    credits: int | None = Field(default=None, ge=1)
    """Number of values that a producer may be ahead of its consumers, beyond the edge's lag.
    Default: two, or more if the values are small."""
    sizes: dict[str, ByteSize] = Field(default_factory=dict)
    """Bytes that all ranks together return from an operator call in one step, by the call's label,
    as in {rollout.generate: 20MB}. Placement strategies put the ranks that exchange the most on one
    node. `rolemesh plan --profile` measures the sizes (rolemesh-subgraph)."""


class MetricsSpec(_Strict):
    """How metrics are recorded."""

    every: int | None = Field(default=None, ge=1)
    """Number of steps that one line of metrics.jsonl averages; null: one, or as many as make 20
    lines per second where steps are quick."""


class UntilSpec(_Strict):
    """Conditions that finish a job before its last step. The first one that holds finishes it."""

    metric: str | None = None
    """Name of a metric in metrics.jsonl, as 'name' or 'role.operator/name'."""
    at_least: float | None = None
    """Finish when the metric reaches this value or more."""
    at_most: float | None = None
    """Finish when the metric reaches this value or less."""
    max_s: float | None = Field(default=None, gt=0)
    """Finish this many seconds after the job's start."""

    def reason(self, line: StepMetrics) -> str:
        """Return why this line of metrics finishes the job; "" if it does not."""
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
    """A job file."""

    name: str
    """Name of the job, and of its folder under runs/."""
    flow: str
    """The flow function, as 'package.module:name' or 'file.py:name' relative to the job file."""
    steps: Annotated[int, Field(ge=1)] | None
    """Number of steps to run; null: no limit, the job runs until something else finishes it."""
    until: UntilSpec = Field(default_factory=UntilSpec)
    """Conditions that finish the job before its last step."""
    seed: int = Field(default=0, ge=0)
    """Seed for all random numbers of the job."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the flow function."""
    roles: dict[str, RoleSpec] = Field(min_length=1)
    """The roles, by name."""
    placement: OneOrMore = Field(default_factory=list)
    """Placement strategy, or a list of strategies that are applied in order. The default strategy
    follows and places the ranks that they leave."""
    failover: list[Use] = Field(default_factory=list)
    """Failover levels, in the order in which the engine asks them."""
    diagnosers: list[Use] = Field(default_factory=list)
    """Diagnosers, in the order in which the engine asks them. The first one with a verdict on a
    failure decides. Without this key: the default diagnoser."""
    edges: EdgesSpec = Field(default_factory=EdgesSpec)
    metrics: MetricsSpec = Field(default_factory=MetricsSpec)
    observers: list[Use] = Field(default_factory=list)
    """Observers, which watch the job. Without this key: the default observer."""
    plugins: dict[str, list[Named]] = Field(default_factory=dict)
    """Plugins of kinds that other distributions declare, by the name of the kind."""
    engine: EngineField = Field(default_factory=EngineUse)
    """The engine that runs the job, with its options."""

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
