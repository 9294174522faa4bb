"""The options of `pd`: the roles of the two pools, how many of each form a unit, and how near they are."""

from __future__ import annotations

import re

from pydantic import BaseModel, Field, field_validator, model_validator

__all__ = ["PdOptions"]


class PdOptions(BaseModel, extra="forbid"):
    """The two pools."""

    prefill: str = Field(description="The role that reads prompts and makes their KV cache.")
    decode: str = Field(description="The role that fetches the cache and generates.")
    ratio: str | None = Field(
        default=None,
        description="Prefill to decode ranks in a unit, e.g. '1:2'. Default: the ratio of the world sizes.",
    )
    near: str = Field(
        default="node",
        description="A unit, whose ranks exchange caches, stays on one node if one has room for it. If none has, it "
        "goes with label.NAME to nodes with the same value of that label.",
    )

    @field_validator("ratio")
    @classmethod
    def _two_numbers(cls, ratio: str | None) -> str | None:
        if ratio is not None and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", ratio):
            raise ValueError(f"{ratio!r} is not PREFILL:DECODE, e.g. '1:2'")
        return ratio

    @field_validator("near")
    @classmethod
    def _a_domain(cls, near: str) -> str:
        if near != "node" and not re.fullmatch(r"label\.\S+", near):
            raise ValueError(f"{near!r} is neither node nor label.NAME")
        return near

    @model_validator(mode="after")
    def _two_roles(self) -> PdOptions:
        if self.prefill == self.decode:
            raise ValueError(f"prefill and decode are both {self.decode!r}; they are two roles")
        return self
