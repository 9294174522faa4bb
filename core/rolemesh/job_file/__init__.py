"""The job file: its model, and `load`, which turns YAML, overrides and environment variables into a
checked `JobFile`."""

from rolemesh.job_file.loading import JobFile, load
from rolemesh.job_file.model import JobSpec, RoleSpec, Use
from rolemesh.job_file.world_size import WorldSize

__all__ = ["JobFile", "JobSpec", "RoleSpec", "Use", "WorldSize", "load"]
