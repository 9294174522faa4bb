"""What a role's processes find around them (`runtime_env`): checked, and with absolute paths.

Environments are not made here: an engine whose roles have processes of their own does that.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo

from rolemesh.errors import JobFileError

_ARCHIVE = re.compile(r"\.(whl|zip|tar\.\w+|tgz)$")
_SHARED = "give a path relative to the job file; it must be there on every node"


class _RefusedError(JobFileError, ValueError):
    """A value that pydantic refuses with its place, and we with a remedy."""


def _absolute(path: str, info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("base", "."), path).resolve()


def _folder(path: str | None, info: ValidationInfo) -> str | None:
    if path is None:
        return None
    folder = _absolute(path, info)
    if not folder.is_dir():
        raise _RefusedError(f"there is no folder {folder}", remedy=_SHARED)
    return str(folder)


def _requirement(line: str, info: ValidationInfo) -> str:
    """`line` with an absolute path, if it is one: a requirement of a name, a wheel or a URL."""
    line = line.strip()
    if not line:
        raise _RefusedError("an empty line installs nothing", remedy="remove it")
    if line.startswith("-"):
        what = f"{line.split()[0].split('=')[0]} is an option of pip, not a requirement"
        remedy = "list the requirements themselves; options are variables, e.g. env_vars: {PIP_INDEX_URL: …}"
        raise _RefusedError(what, remedy=remedy)
    name, at, target = (part.strip() for part in line.partition(" @ "))
    path = target if at else name
    if "://" in path or not ("/" in path or _ARCHIVE.search(path)):
        return line
    whole = _absolute(path, info)
    if whole.is_dir():
        what = f"{whole} is a folder, whose content may change: an environment is cached by its lines"
        raise _RefusedError(what, remedy="build a wheel of it (pip wheel --no-deps), or give it as working_dir")
    if not whole.is_file():
        raise _RefusedError(f"there is no file {whole}", remedy=_SHARED)
    return f"{name} @ file://{whole}" if at else str(whole)


class RuntimeEnv(BaseModel, extra="forbid", frozen=True, use_attribute_docstrings=True):
    """What a role's processes find around them, apart from the other roles'."""

    pip: list[Annotated[str, AfterValidator(_requirement)]] = Field(default_factory=list)
    """What pip installs for this role, on top of what is installed: requirements, one each; paths of wheels are
    relative to the job file."""
    env_vars: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(default_factory=dict)
    """Environment variables of this role's processes."""
    working_dir: Annotated[str | None, AfterValidator(_folder)] = None
    """The folder that this role's processes run in and import from first, relative to the job file."""
