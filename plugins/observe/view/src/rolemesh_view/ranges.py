"""The numbers of ranks that a job file allows. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

__all__ = ["allowed", "ranges_of"]

Range = tuple[int, int]
"""The minimum and the maximum number of ranks of a role."""
MOST_CHARACTERS = 200_000
"""Maximum length of a job file that is read."""


def ranges_of(job_file: str) -> dict[str, Range]:
    """Return the range of each role with ``world_size: {min, max}``; nothing if the job file cannot be read."""
    try:
        job = yaml.safe_load(job_file) if len(job_file) <= MOST_CHARACTERS else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    roles = job.get("roles") if isinstance(job, dict) else None
    found = {}
    for name, role in roles.items() if isinstance(roles, dict) else ():
        size = role.get("world_size") if isinstance(role, dict) else None
        least, most = (size.get("min"), size.get("max")) if isinstance(size, dict) else (None, None)
        if isinstance(least, int) and isinstance(most, int):
            found[str(name)] = least, most
    return found


def allowed(ranges: Mapping[str, Range], role: str, ranks: int) -> str:
    """Return why `role` cannot have this number of ranks; "" if the job file allows them."""
    least, most = ranges.get(role, (1, ranks))
    return "" if least <= ranks <= most else f"the job file allows {least} to {most} ranks"
