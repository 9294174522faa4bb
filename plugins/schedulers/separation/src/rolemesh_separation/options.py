"""The options of `separation`: roles that stay apart, roles that are spread, and roles that need labels."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, PositiveInt, model_validator

__all__ = ["Parts", "SeparationOptions", "Spreading"]

_DOMAIN = re.compile(r"node|device|label\.\S+")


def _domain(name: str) -> str:
    if not _DOMAIN.fullmatch(name):
        raise ValueError(f"{name!r} is none of node, device, label.NAME")
    return name


Domain = Annotated[str, AfterValidator(_domain)]
Roles = Annotated[list[str], Field(min_length=1)]


class Parts(BaseModel, extra="forbid"):
    """Groups of roles of which no two share a domain. A list of groups stands for groups that are kept apart by
    node."""

    groups: Annotated[list[Roles], Field(min_length=2)] = Field(
        description="Groups of roles that stay apart from each other."
    )
    by: Domain = Field(default="node", description="The domain that they do not share: node, device, or label.NAME.")

    @model_validator(mode="before")
    @classmethod
    def _of_a_list(cls, data: Any) -> Any:
        data = {"groups": data} if isinstance(data, list) else data
        if isinstance(data, dict) and isinstance(data.get("groups"), list):
            data = data | {"groups": [[each] if isinstance(each, str) else each for each in data["groups"]]}
        return data

    @model_validator(mode="after")
    def _each_role_once(self) -> Parts:
        roles = [role for group in self.groups for role in group]
        if twice := sorted({role for role in roles if roles.count(role) > 1}):
            raise ValueError(
                f"role {twice[0]!r} is in two groups, so it would be apart from itself; use spread for that"
            )
        return self


class Spreading(BaseModel, extra="forbid"):
    """How a role's ranks are spread. The name of a domain stands for one rank per domain."""

    over: Domain = Field(default="node", description="node, or label.NAME.")
    most: PositiveInt = Field(default=1, description="Maximum number of ranks in each domain.")

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, data: Any) -> Any:
        return {"over": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _not_over_devices(self) -> Spreading:
        if self.over == "device":
            raise ValueError("ranks share a device only where a strategy says so; spread them over node or label.NAME")
        return self


class SeparationOptions(BaseModel, extra="forbid"):
    """The constraints on all placements."""

    apart: list[Parts] = Field(
        default_factory=list, description="Roles that do not share nodes, devices or labels, e.g. [[rollout, trainer]]."
    )
    spread: dict[str, Spreading] = Field(
        default_factory=dict, description="Roles whose ranks are spread, e.g. {rollout: {over: label.rack, most: 2}}."
    )
    nodes: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="Roles that need nodes with labels, e.g. {trainer: {gpu: h100}}."
    )

    @model_validator(mode="after")
    def _something(self) -> SeparationOptions:
        if not (self.apart or self.spread or self.nodes):
            raise ValueError("it demands nothing: give apart, spread or nodes")
        return self
