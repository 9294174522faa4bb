"""The options of the extension `debug` in a job file."""

from __future__ import annotations

from pydantic import BaseModel, Field

__all__ = ["DebugOptions"]


class DebugOptions(BaseModel, extra="forbid", frozen=True):
    """The sizes of the saved inputs of failing operators."""

    max_mb: float = Field(
        default=64.0, ge=0, description="Maximum size of the saved inputs of one failure, in MB; 0: save none."
    )
    max_files: int = Field(
        default=10, ge=1, description="Maximum number of failures of the job whose inputs are kept; old ones go."
    )
