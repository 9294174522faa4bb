"""The engine: the whole job in this process, as `inline` runs it, and what the process used meanwhile."""

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from rolemesh.api.observer import JobStatus
from rolemesh.job.engine import Engine, RunHandle, Say
from rolemesh.job.prepared import Prepared
from rolemesh_inline import InlineEngine

__all__ = ["{{ cookiecutter.__class }}"]


class {{ cookiecutter.__class }}(Engine):
    """Runs a job in the process that waits for it, and writes its time and memory into the run's folder."""

    class Options(BaseModel, extra="forbid"):
        """Options in the job file, under `engine`."""

        file: str = Field(default="usage.json", pattern=r"^[^/]+$", description="The file in the run's folder.")

    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        """Check that the job can run here; it runs when somebody waits for it."""
        inner = InlineEngine(InlineEngine.RunOptions()).start(job, run_dir, detached=detached, say=say)
        options = job.selection.engine.options
        assert isinstance(options, self.Options)
        return Measured(inner, options.file)


class Measured(RunHandle):
    """A job of the engine `inline`, measured while it runs."""

    def __init__(self, inner: RunHandle, file: str) -> None:
        super().__init__(inner.run_dir)
        self.inner, self.file = inner, file

    def status(self) -> JobStatus | None:
        """See `RunHandle`."""
        return self.inner.status()

    def stop(self, reason: str) -> None:
        """See `RunHandle`."""
        self.inner.stop(reason)

    def result(self) -> dict[str, Any] | None:
        """See `RunHandle`."""
        return self.inner.result()

    def wait(self, interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
        """Run the job to its end, and write what it used: seconds, and the process's peak of memory in 10^6 bytes."""
        began, cpu = time.perf_counter(), time.process_time()
        try:
            return self.inner.wait(interrupted)
        finally:
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
            used = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "peak_mb": peak_mb}
            if self.run_dir.is_dir():
                (self.run_dir / self.file).write_text(json.dumps(used, indent=2) + "\n", encoding="utf-8")
