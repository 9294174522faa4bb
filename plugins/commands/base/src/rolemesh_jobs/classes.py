"""Resolve the classes and options that a run's job file names, in the same way as when the job started.

A run that another user could have written chooses no code: only installed plugins are imported, and no option of it
names a function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from rolemesh.api.import_ref import ImportRef
from rolemesh.errors import PluginError, RolemeshError
from rolemesh.job_file.model import Use
from rolemesh.plugins.discovery import PluginRecord, discover, resolve
from rolemesh.plugins.drivers import load
from rolemesh.runs.run import JOB_FILE
from rolemesh_durable.api.jobs import Run

__all__ = ["Resolved", "Resolver"]


class Resolved(NamedTuple):
    """A plugin or a class of the job's own, with its checked options."""

    record: PluginRecord
    cls: type[Any]
    options: BaseModel


class Resolver:
    """Resolves the names in the job file of `run`.

    `base` is the folder of the original job file. If it does not exist, because the run was copied to another machine,
    the folders around the run's folder and the working directory are searched.
    """

    def __init__(self, run: Run, base: str) -> None:
        self._run, self._base, self._records = run, base, discover()

    def find(self, kind: str, use: Use, key: str) -> Resolved:
        """Return the plugin `use` of this kind, which is at `key` in the job file.

        Raises `PluginError` if the class or its options are not available any more, and `ForeignRunError` if other
        users could have changed which code is imported.
        """
        where = f"{self._run.path / JOB_FILE}: {key}"
        base = self._base_of(use.use)
        if ":" in use.use and not any(each.is_called(use.use) for each in self._records):
            self._require_own(use.use)  # before a look for the module: its parents might be imported
        record = resolve(kind, use.use, self._records, base, where)
        try:
            cls = load(record, where)
            options = cls.Options.model_validate(use.options, context={"base": str(base)})
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise PluginError(
                f"its options are not valid any more: {told}", where=where, remedy=_as_before(base)
            ) from None
        except RolemeshError as error:
            remedy = _as_before(base) if not record.distribution else error.remedy
            kind = error.kind if isinstance(error, PluginError) else "broken"
            raise PluginError(error.what, kind=kind, where=error.where or where, remedy=remedy) from error
        for code in set(_texts(options, ImportRef)) & set(_texts(use.options, str)):
            self._require_own(code)  # the defaults of an installed plugin are its own
        return Resolved(record, cls, options)

    def _require_own(self, code: str) -> None:
        self._run.require_own(f"{code}, which is code of the job's own, is not imported", writers=0o002)

    def _base_of(self, reference: str) -> Path:
        """Return the first existing folder that paths may be relative to. For a class in a file, the first that has the
        file."""
        run = self._run.path.resolve()
        folders = [folder for folder in (Path(self._base or run), *run.parents[1::-1], Path.cwd()) if folder.is_dir()]
        file = reference.partition(":")[0]
        has_it = (folder for folder in folders if file.endswith(".py") and Path(folder, file).is_file())
        return next(has_it, folders[0])


def _texts(value: Any, kind: type[str]) -> Iterator[str]:
    """Yield the texts of this type in options."""
    if isinstance(value, kind):
        yield str(value)
    elif isinstance(value, BaseModel):
        yield from _texts(dict(value), kind)
    elif isinstance(value, Mapping):
        yield from (text for each in value.items() for part in each for text in _texts(part, kind))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (text for each in value for text in _texts(each, kind))


def _as_before(base: Path) -> str:
    return f"put the files in {base} back as they were when the job ran"
