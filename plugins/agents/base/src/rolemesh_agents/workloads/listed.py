"""Plugins that the job file lists and a role uses: the one that an option names, or the only one of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rolemesh.errors import OptionsError, nearest

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = ["check_listed", "listed_name"]


def listed_name(listed: Mapping[tuple[str, str], Any], kind: str, name: str | None) -> str:
    """Return `name`; for None that of the only plugin of the kind, as `check_listed` has found it.

    `listed` has the keys of `RankContext.plugins`.
    """
    return name or next(each for group, each in listed if group == kind)


def check_listed(job: CheckedJob, kind: str, name: str | None, where: str) -> str:
    """Return what `listed_name` returns.

    Raises `OptionsError` unless the job file lists the plugin `name` of this kind, or for None exactly one.
    """
    listed = [each for group, each in job.declared if group == kind]
    if name in listed or (name is None and len(listed) == 1):
        return listed_name(job.declared, kind, name)
    if name is None and listed:
        what, remedy = f"the job file lists several {kind}: {', '.join(listed)}", f"name one: {where}: {listed[0]!r}"
    else:
        what = (
            f"the job file lists no {kind}" if name is None else f"the job file lists no {name!r} under plugins.{kind}"
        )
        remedy = nearest(name or "", listed) if listed else f"write plugins: {{{kind}: [{{use: {name or 'NAME'!r}}}]}}"
    raise OptionsError(what, where=where, remedy=remedy)
