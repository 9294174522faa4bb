"""The options of the recorder in a job file."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

__all__ = ["RecorderOptions"]


def _share(value: Any) -> str:
    share = Fraction(str(value))
    if not 0 < share <= 1:
        raise ValueError("a share is above 0 and at most 1, such as 1/50")
    return str(share)


class RecorderOptions(BaseModel, extra="forbid", frozen=True):
    """The content of the record, and its maximum size."""

    enabled: bool = Field(default=True, description="Record at all.")
    max_mb: float = Field(
        default=4.0,
        ge=0.1,
        description="Maximum size of each rank's and each node's record, in MB. Older parts become coarser.",
    )
    rows: dict[str, Annotated[str, BeforeValidator(_share)]] = Field(
        default_factory=dict,
        description="Share of the rows to keep, by operator, such as `rollout.generate: 1/50`. The recorder keeps rows "
        "that the operator returns; if it returns none, rows that it takes.",
    )
    rows_mb: float = Field(
        default=64.0, gt=0, description="Maximum size of each rank's kept rows, in MB. The oldest ones go."
    )
