"""The check: how many small files a second a node makes and removes where the job's files are."""

import tempfile
import time
from pathlib import Path

from pydantic import Field
from rolemesh_durable.checks import Check, CheckedNode, CheckOptions

__all__ = ["{{ cookiecutter.__class }}"]


class {{ cookiecutter.__class }}(Check):
    """``files_per_s`` in the run's folder: slow where a network file system is overloaded."""

    class Options(CheckOptions):
        """Options in the job file, with the limits and the `timeout_s` of every check."""

        files: int = Field(default=200, ge=1, description="How many files are made and removed.")

    options: Options

    def measure(self, node: CheckedNode) -> dict[str, float]:
        """Make and remove files of one byte. An exception fails the node."""
        with tempfile.TemporaryDirectory(dir=node.run_dir, prefix=".files-") as folder:
            began = time.perf_counter()
            for number in range(self.options.files):
                path = Path(folder, str(number))
                path.write_bytes(b"x")
                path.unlink()
            return {"files_per_s": self.options.files / max(time.perf_counter() - began, 1e-9)}
