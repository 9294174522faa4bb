"""The installed distributions, each once. Metadata of an interrupted installation are reported and
not used."""

from __future__ import annotations

import csv
import os
import re
import shlex
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import NamedTuple

from rolemesh.api.import_ref import OWN
from rolemesh.errors import PluginError

INTACT, DOUBTFUL, UNUSABLE = range(3)
"""How complete metadata are. Doubtful metadata lack RECORD, which pip writes last and some
installers never write."""

GROUPS = "[rolemesh."
"""Start of the line that begins a group of rolemesh's entry points."""
RENAMED = "~-"
"""Characters with which pip begins the name of a folder that it is about to delete."""


class _Found(NamedTuple):
    distribution: Distribution
    path: Path
    state: int
    why: str
    """Reason why the metadata are not intact."""
    version: str = ""


def normalized(distribution: str) -> str:
    """Return a distribution's name in the form in which PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def distribution(name: str) -> Distribution:
    """Return the installed distribution `name`. Raises `PluginError` if it is missing or only
    leftovers of it exist."""
    if best := _best([*Distribution.discover(name=name, path=_installed())])[0]:
        return best.distribution
    raise PluginError(f"{name} is not installed", kind="missing", remedy=how_to_install(name))


def version(name: str) -> str:
    """Return the version of the installed distribution `name`. Raises `PluginError`."""
    return distribution(name).version


def entry_points() -> tuple[EntryPoint, ...]:
    """Return the entry points in rolemesh's groups, of all distributions with usable metadata.

    The metadata are read again only if ``sys.path`` or the time of change of a folder on it differs
    from the last call, as after an installation.
    """
    return _entry_points(tuple((each, _changed_ns(each)) for each in _installed()))


@lru_cache(maxsize=1)
def _entry_points(_: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    points: list[EntryPoint] = []
    for found in _by_name().values():
        with suppress(Exception):  # of a damaged file: `leftovers` names it
            if not any(GROUPS in (each.read_text("entry_points.txt") or "") for each in found):
                continue  # most of what is installed: parsing all of it would take long
        if best := _best(found)[0]:
            points += best.distribution.entry_points
    return tuple(point for point in points if point.group.startswith(GROUPS[1:]))


def _changed_ns(folder: str) -> int:
    with suppress(OSError):
        return os.stat(folder or ".").st_mtime_ns
    return 0


def leftovers(of: str = "") -> list[PluginError]:
    """Return the unused metadata of all distributions or of one: damaged metadata, and older ones
    beside newer ones.

    In each error, `where` is the folder and `remedy` is a command.
    """
    left = []
    for name, found in _by_name().items():
        best, judged = _best(found)
        renamed = name[0] in RENAMED
        may_be = renamed and len(of) == len(name) and of.endswith(name.lstrip(RENAMED))
        for at, each in enumerate(judged if may_be or of in ("", name) else ()):
            passed = best and (at < judged.index(best) or each.path.parent == best.path.parent)
            if each is best or not (passed or each.state == UNUSABLE):
                continue
            then = f"; {name} {best.version} is used" if best else ""
            what = (
                "an interrupted installation left it: "
                f"{each.why or 'a newer one is beside it'}{then}"
            )
            again = "" if best or renamed else f" && pip install {name}"
            remedy = f"rm -r {shlex.quote(str(each.path))}{again}"
            left.append(PluginError(what, where=str(each.path), remedy=remedy))
    return left


def how_to_install(name: str, requirement: str = "") -> str:
    """Return the command that installs the distribution `name`. If it is half installed, the
    command first removes the leftovers, and names them."""
    left = leftovers(normalized(name))
    remove = "".join(f"rm -r {shlex.quote(each.where or '')} && " for each in left)
    told = (f"{each.where}: {each.what}" for each in left)
    return "; ".join([f"{remove}pip install {requirement or name}", *told])


def _by_name() -> dict[str, list[Distribution]]:
    """Return the distributions on ``sys.path`` by name, each list in the order of the path."""
    found: dict[str, list[Distribution]] = {}
    for each in Distribution.discover(path=_installed()):
        named = re.fullmatch(r"(.+?)(-[^-]*(-py[^-]*)?)?\.(dist|egg)-info", _path(each).name)
        name = named[1] if named else each.metadata["Name"] or "?"
        found.setdefault(normalized(name), []).append(each)
    return found


def _installed() -> list[str]:
    """Return ``sys.path`` without the folders of the job's own code, where anybody may have put
    metadata."""
    return [each for each in sys.path if each not in OWN]


def _path(found: Distribution) -> Path:
    return Path(str(getattr(found, "_path", found.locate_file(""))))


def _best(found: list[Distribution]) -> tuple[_Found | None, list[_Found]]:
    """Return the best usable metadata, and all judged ones. The most complete win, then those first
    on the path, then the newest in a folder."""
    judged = [_judged(each, len(found) > 1 and _path(each).exists()) for each in found]

    def rank(each: _Found) -> tuple[int, int, list[int]]:
        numbers = [-int(digits) for digits in re.findall(r"\d+", each.version)]
        position = [one.path.parent for one in judged].index(each.path.parent)
        return each.state, position, [*numbers, 1]

    best = min((each for each in judged if each.state != UNUSABLE), key=rank, default=None)
    return best, judged


def _judged(found: Distribution, thorough: bool) -> _Found:
    """Judge how complete the metadata are. RECORD, and the files that it lists, are only checked if
    `thorough`."""
    path = _path(found)
    try:
        text = next(filter(None, map(found.read_text, ("METADATA", "PKG-INFO", ""))), "")
        record = found.read_text("RECORD") if thorough else "-"
        _ = found.entry_points if GROUPS in (found.read_text("entry_points.txt") or "") else ()
    except Exception as error:
        return _Found(found, path, UNUSABLE, f"it cannot be read ({type(error).__name__}: {error})")
    named = re.search(r"^Name: *\S.*?^Version: *(\S+)", text, re.MULTILINE | re.DOTALL)
    if named is None or path.name[0] in RENAMED:
        why = "pip was about to delete it" if named else "its METADATA cannot be read"
        return _Found(found, path, UNUSABLE, why)
    listed = [row[0] for row in csv.reader((record or "").splitlines()) if row and thorough]
    sources = (str(found.locate_file(each)) for each in listed if not each.endswith(".pyc"))
    missing = next((each for each in sources if not os.access(each, os.R_OK)), "")
    why = "it has no RECORD" if not record else f"{missing} is missing" if missing else ""
    return _Found(found, path, DOUBTFUL if why else INTACT, why, named[1])
