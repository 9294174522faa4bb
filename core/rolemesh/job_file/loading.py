"""`load` turns a YAML file, overrides and the environment into a checked `JobFile` that knows the
place of each value."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from rolemesh.errors import JobFileError, Problems, RolemeshError, raise_all
from rolemesh.job_file.environment import Expansion
from rolemesh.job_file.misplaced import misplaced
from rolemesh.job_file.model import JobSpec
from rolemesh.job_file.overrides import Types, apply_overrides, types_of_spec
from rolemesh.job_file.places import Path as Keys, Places, dump_yaml, parse_yaml
from rolemesh.job_file.problems import problems


@dataclass(frozen=True)
class JobFile:
    """A loaded job file.

    - `base`: the folder of the file; relative paths refer to it.
    - `spec`: the checked job, with all variables replaced.
    - `raw`: the job with its defaults, but with ``${VAR}`` as written. It contains no secrets, so
      it can be stored.
    """

    path: Path
    base: Path
    spec: JobSpec
    raw: dict[str, Any]
    places: Places = field(repr=False)
    from_env: frozenset[Keys] = field(default=frozenset(), repr=False)

    def where(self, path: Sequence[str | int]) -> str:
        """Return the place of a value: ``job.yaml:12: roles.trainer.use``, or ``command line:
        roles.trainer.use=fsdp``."""
        return self.places.where(tuple(path))

    def is_secret(self, path: Sequence[str | int]) -> bool:
        """Return whether the value at `path`, or one that contains it, came from an environment
        variable."""
        known, _ = self.places.resolve(tuple(path))
        return any(known[: len(expanded)] == expanded for expanded in self.from_env)

    def placed(self, error: RolemeshError, below: Keys = ()) -> RolemeshError:
        """Return `error` with file and line if its `where` is a path in the job file
        (``roles.trainer``, ``flow``).

        If `below` is given, `where` is relative to it. A `where` that the job file lacks is then
        appended to the place of `below`.
        """
        if isinstance(error, Problems):
            return Problems([self.placed(each, below) for each in error.errors])
        path = (*below, *(error.where.split(".") if error.where else ()))
        if (unknown := not path or self.places.resolve(path)[1]) and not below:
            return error
        where = (
            f"{self.where(below)}: {error.where}" if unknown and error.where else self.where(path)
        )
        placed = copy.copy(error)
        placed.where = where
        placed.__cause__ = error.__cause__
        return placed

    def dump(self) -> str:
        """Return the resolved job file as YAML: with overrides and defaults, but with variables as
        written."""
        return dump_yaml(self.raw)


class Written(NamedTuple):
    """A job file that is not on disk: its text, the folder for its relative paths, and a name for
    messages."""

    text: str
    base: Path
    name: str


def load(
    source: str | Path | Written,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    types: Callable[[Path], Types] = lambda base: types_of_spec,
) -> JobFile:
    """Read, override, expand and check a job file. `environ` defaults to `os.environ`.

    `types` takes the folder of the job file and returns a function that gives the types of options;
    overrides are read as these types.

    Raises `JobFileError`, or `Problems` if there are several.
    """
    if isinstance(source, Written):
        path = source.base / source.name
        data, places = parse_yaml(source.text, source.name)
    else:
        path = Path(source)
        data, places = parse_yaml(_read(path), str(path))
    if not isinstance(data, dict):
        found = "is empty" if data is None else "is not a mapping"
        raise JobFileError(
            f"the job file {found}",
            where=str(path),
            remedy="begin with 'name:', 'flow:' and 'roles:'",
        )
    base = path.resolve().parent
    types_here = types(base)
    errors = apply_overrides(data, places, overrides, types_here)
    expansion = Expansion(os.environ if environ is None else environ, places)
    expanded = expansion.expand(data)
    errors += expansion.errors
    raise_all(errors)
    from_env = frozenset(expansion.expanded)
    try:
        spec = JobSpec.model_validate(expanded, context={"base": base})
    except ValidationError as error:
        hidden = JobFile(path, base, JobSpec.model_construct(), {}, places, from_env)
        elsewhere = partial(misplaced, types_here, data, places)
        raise_all(problems(error, JobSpec, hidden, (), JobFileError, elsewhere))
        raise
    raw = _with_defaults(data, spec.model_dump(mode="json"))
    return JobFile(path, base, spec, raw, places, from_env)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobFileError(
            f"there is no file {path}", remedy="give the path of a job file, e.g. job.yaml"
        ) from None
    except IsADirectoryError:
        raise JobFileError(
            f"{path} is a folder", remedy=f"give the file in it, e.g. {path / 'job.yaml'}"
        ) from None
    except UnicodeDecodeError as error:
        raise JobFileError(
            f"not UTF-8 text: {error.reason}", where=str(path), remedy="save it as UTF-8"
        ) from None
    except OSError as error:
        raise JobFileError(f"cannot be read: {error.strerror}", where=str(path)) from error


def _with_defaults(written: Any, checked: Any) -> Any:
    """Return `written` with the values that the model added. A value in `written` wins."""
    if isinstance(written, dict) and isinstance(checked, list) and len(checked) == 1:
        written = [written]
    if isinstance(written, dict) and isinstance(checked, dict):
        added = {key: copy.deepcopy(value) for key, value in checked.items() if key not in written}
        return {
            key: _with_defaults(value, checked.get(key)) for key, value in written.items()
        } | added
    if isinstance(written, list) and isinstance(checked, list) and len(written) == len(checked):
        return [_with_defaults(mine, theirs) for mine, theirs in zip(written, checked, strict=True)]
    return copy.deepcopy(written)
