"""The options of `collocation`: which roles share slots, in which ratio, and with which shares."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, PositiveInt, field_validator, model_validator

__all__ = ["CollocationOptions", "Group"]

Share = Annotated[float, Field(gt=0, le=1)]


class Group(BaseModel, extra="forbid"):
    """Roles that share slots. A list of their names is a group with neither ratio nor shares."""

    roles: Annotated[list[str], Field(min_length=2)] = Field(description="The roles that share slots.")
    ratio: dict[str, PositiveInt] | None = Field(
        default=None,
        description="Ranks of each role in a unit, e.g. {trainer: 4, rollout: 2}: two rollout ranks beside each four "
        "of the trainer. A unit stays on one node if one has room. Default: all ranks are one unit.",
    )
    shares: dict[str, Share] | None = Field(
        default=None,
        description="Share of a slot's GPUs that a rank of each role uses while the others run, too. The sum is at "
        "most 1. Default: each may use the whole slot.",
    )
    turns: bool = Field(
        default=False,
        description="A slot's ranks run one after the other, in the order of the flow. Each frees its memory before "
        "the next one runs (`offload` and `onload` of its workload).",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_a_list(cls, data: Any) -> Any:
        return {"roles": data} if isinstance(data, list) else data

    @model_validator(mode="after")
    def _of_its_roles(self) -> Group:
        for key in ("ratio", "shares"):
            given = getattr(self, key)
            if given is None:
                continue
            if unknown := sorted(set(given) - set(self.roles)):
                raise ValueError(f"{key} names {unknown[0]!r}, which is not in the group [{', '.join(self.roles)}]")
            if missing := sorted(set(self.roles) - set(given)):
                raise ValueError(f"{key} has no value for {missing[0]!r}")
        if self.shares is not None and self.turns:
            raise ValueError("shares are for roles that run at the same time, turns for those that do not: use one")
        if self.shares is not None and (total := round(sum(self.shares.values()), 9)) > 1:
            told = " + ".join(f"{role} {share:g}" for role, share in self.shares.items())
            raise ValueError(f"the shares are {told} = {total:g}, and a slot has 1")
        return self


class CollocationOptions(BaseModel, extra="forbid"):
    """Which roles share slots."""

    groups: Annotated[list[Group], Field(min_length=1)] = Field(
        description="Groups of roles. Rank i of each role of a group shares slot i; a role with fewer ranks than the "
        "group has slots sits on every k-th of them."
    )

    @field_validator("groups")
    @classmethod
    def _each_role_once(cls, groups: list[Group]) -> list[Group]:
        roles = [role for group in groups for role in group.roles]
        if twice := sorted({role for role in roles if roles.count(role) > 1}):
            raise ValueError(f"role {twice[0]!r} is listed twice; a rank can sit on one slot only")
        return groups
