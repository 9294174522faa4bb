"""The engine `preview`: the first steps of a job, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, Field
from rolemesh.job.engine import Engine, RunHandle, Say
from rolemesh.job.prepared import Prepared
from rolemesh_inline import InlineEngine


class PreviewOptions(BaseModel, extra="forbid"):
    """Options of a run."""

    steps: int = Field(default=3, ge=1, description="How many steps are run, at most.")


class Preview(Engine):
    """Runs a job's first steps, with all ranks in this process. It shows whether the job works at all."""

    RunOptions: ClassVar[type[BaseModel]] = PreviewOptions
    api_version: ClassVar[int] = 1

    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        """Run the job with fewer steps, with the engine in one process."""
        steps = min(self.options.steps, job.job.spec.steps)
        say(f"preview: {steps} of {job.job.spec.steps} steps")
        shorter = job.again([f"steps={steps}"])
        return InlineEngine(InlineEngine.RunOptions()).start(shorter, run_dir, detached=detached, say=say)
