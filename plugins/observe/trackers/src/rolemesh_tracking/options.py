"""The options that every tracker has."""

from __future__ import annotations

from pydantic import BaseModel, Field

__all__ = ["TrackerOptions"]


class TrackerOptions(BaseModel, extra="forbid"):
    """Options of a tracker."""

    run: str = Field(default="", description="Name of the run; default: the job's name.")
    metrics: list[str] = Field(
        default_factory=lambda: ["*"], description="Patterns of the metrics to send, such as `eval/*`; default: all."
    )
    interval_s: float = Field(default=1.0, ge=0, le=3600, description="Minimum seconds from one sending to the next.")
