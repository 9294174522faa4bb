"""The environments that roles request for their processes (`runtime_env`), checked and with absolute paths.

Agents prepare the environments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rolemesh.errors import JobFileError
from rolemesh.job_file import JobFile
from rolemesh_durable.protocol.job import Environment

_ARCHIVE = re.compile(r"\.(whl|zip|tar\.\w+|tgz)$")
_SHARED = "give a path relative to the job file; it must be there on every node"


def environment_of(job: JobFile, role: str) -> Environment:
    """Return the environment of the role's processes; empty if it requests none of its own."""
    asked = job.spec.roles[role].runtime_env
    if not (asked.pip or asked.working_dir):
        return Environment()
    where = job.where(("roles", role, "runtime_env", "pip" if asked.pip else "working_dir"))
    folder = str((job.base / asked.working_dir).resolve()) if asked.working_dir is not None else ""
    return Environment(tuple(_requirement(line.strip(), job.base) for line in asked.pip), folder, where)


def wrong_environments(job: JobFile) -> Iterator[JobFileError]:
    """Yield the errors of the roles' environments, each with its line in the job file."""
    for name, role in job.spec.roles.items():
        asked, path = role.runtime_env, ("roles", name, "runtime_env")
        for index, line in enumerate(asked.pip):
            try:
                _requirement(line.strip(), job.base)
            except JobFileError as error:
                error.where = job.where((*path, "pip", index))
                yield error
        if asked.working_dir is not None and not (folder := (job.base / asked.working_dir).resolve()).is_dir():
            where = job.where((*path, "working_dir"))
            yield JobFileError(f"there is no folder {folder}", where=where, remedy=_SHARED)


def _requirement(line: str, base: Path) -> str:
    """Return `line` with an absolute path, if it is a requirement: a name, a wheel or a URL. Raises `JobFileError`."""
    if not line:
        raise JobFileError("an empty line installs nothing", remedy="remove it")
    if line.startswith("-"):
        what = f"{line.split()[0].split('=')[0]} is an option of pip, not a requirement"
        remedy = "list the requirements themselves; options are variables, e.g. env_vars: {PIP_INDEX_URL: …}"
        raise JobFileError(what, remedy=remedy)
    name, at, target = (part.strip() for part in line.partition(" @ "))
    path = target if at else name
    if "://" in path or not ("/" in path or _ARCHIVE.search(path)):
        return line
    whole = (base / path).resolve()
    if whole.is_dir():
        what = f"{whole} is a folder, whose content may change: an environment is cached by its lines"
        raise JobFileError(what, remedy="build a wheel of it (pip wheel --no-deps), or give it as working_dir")
    if not whole.is_file():
        raise JobFileError(f"there is no file {whole}", remedy=_SHARED)
    return f"{name} @ file://{whole}" if at else str(whole)
