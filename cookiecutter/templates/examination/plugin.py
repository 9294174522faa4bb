"""The examination: is there room where models and data sets are cached?"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rolemesh_doctor import Examination, Finding

__all__ = ["{{ cookiecutter.__class }}", "judged"]

LEAST_GB = 5.0


class {{ cookiecutter.__class }}(Examination):
    """Looks at the file system of the cache of models: HF_HOME, or the home folder."""

    def examine(self) -> Iterator[Finding]:
        """One finding, also if all is well."""
        named = os.environ.get("HF_HOME") or os.environ.get("HOME") or "/"
        folder = Path(named)
        while not folder.exists():  # it is made by the first who needs it
            folder = folder.parent
        yield judged(named, shutil.disk_usage(folder).free / 1e9)


def judged(folder: str, free_gb: float) -> Finding:
    """Return the finding for a cache in `folder` with `free_gb` (10^9 bytes) of free space."""
    what = f"{free_gb:.0f} GB are free for the cache of models in {folder}"
    if free_gb >= LEAST_GB:
        return Finding("model cache", "ok", what)
    return Finding("model cache", "warning", what, remedy=f"du -sh {folder}/*, or set HF_HOME to a larger disk")
