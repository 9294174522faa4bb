"""The environments that roles ask for (`runtime_env`), checked and made absolute, as they travel to agents."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rolemesh.errors import JobFileError, RolemeshError, raise_all
from rolemesh.spec import JobFile

__all__ = ["Environment", "environments", "forbid_environments"]

_ARCHIVE = re.compile(r"\.(whl|zip|tar\.\w+|tgz)$")


class Environment(msgspec.Struct, frozen=True):
    """What a role's processes are started in, beside their variables.

    `pip` are lines of a requirements file with absolute paths, `working_dir` is an absolute path or "" for the agent's
    own, `where` the place in the job file. Lines may hold secrets.
    """

    pip: tuple[str, ...] = ()
    working_dir: str = ""
    where: str = ""


def environments(job: JobFile) -> dict[str, Environment]:
    """What each role's processes are started in; empty for a role that asks for nothing of its own.

    Raises `JobFileError` with the line, or `Problems`: a wheel or a folder that is not there, or a line that is
    no requirement of a name, a wheel or a URL.
    """
    found: dict[str, Environment] = {}
    errors: list[RolemeshError] = []
    for name, role in job.spec.roles.items():
        asked, at = role.runtime_env, ("roles", name, "runtime_env")
        lines = []
        for index, line in enumerate(asked.pip):
            try:
                lines.append(_requirement(line.strip(), job.base))
            except JobFileError as error:
                errors.append(JobFileError(error.what, where=job.where((*at, "pip", index)), remedy=error.remedy))
        folder = "" if asked.working_dir is None else str(Path(job.base, asked.working_dir).resolve())
        if folder and not Path(folder).is_dir():
            where = job.where((*at, "working_dir"))
            errors.append(JobFileError(f"there is no folder {folder}", where=where, remedy=_SHARED))
        where = job.where((*at, "pip" if asked.pip else "working_dir")) if lines or folder else ""
        found[name] = Environment(tuple(lines), folder, where)
    raise_all(errors)
    return found


_SHARED = "give a path relative to the job file; it must be there on every node"


def forbid_environments(job: JobFile, way: str) -> None:
    """Raise `JobFileError` if a role needs an interpreter or a folder of its own, which `way` cannot give it."""
    raise_all(list(_forbidden(job, way)))


def _forbidden(job: JobFile, way: str) -> Iterable[RolemeshError]:
    for name, role in job.spec.roles.items():
        for key in ("pip", "working_dir"):
            if getattr(role.runtime_env, key):
                yield JobFileError(
                    f"{way} runs all roles in one process, which cannot have role {name}'s own {key}",
                    where=job.where(("roles", name, "runtime_env", key)),
                    remedy="run it with --backend local",
                )


def _requirement(line: str, base: Path) -> str:
    """`line` with an absolute path, if it is one. Raises `JobFileError` without a place."""
    if not line:
        raise JobFileError("an empty line installs nothing", remedy="remove it")
    if line.startswith("-"):
        raise JobFileError(
            f"{line.split()[0].split('=')[0]} is an option of pip, not a requirement",
            remedy="list the requirements themselves; options are variables, e.g. env_vars: {PIP_INDEX_URL: …}",
        )
    name, at, target = (part.strip() for part in line.partition(" @ "))
    path = target if at else name
    if "://" in path or not ("/" in path or _ARCHIVE.search(path)):
        return line
    whole = Path(base, path).resolve()
    if whole.is_dir():
        raise JobFileError(
            f"{whole} is a folder, whose content may change: an environment is cached by its lines",
            remedy="build a wheel of it (pip wheel --no-deps), or give it as working_dir",
        )
    if not whole.is_file():
        raise JobFileError(f"there is no file {whole}", remedy=_SHARED)
    return f"{name} @ file://{whole}" if at else str(whole)
