"""The job file: its model, and `load`, which turns YAML, overrides and variables into a checked `JobFile`."""

from rolemesh.spec.job_file import JobFile, load
from rolemesh.spec.model import JobSpec, RoleSpec, Use
from rolemesh.spec.world_size import WorldSize

__all__ = ["JobFile", "JobSpec", "RoleSpec", "Use", "WorldSize", "load"]
