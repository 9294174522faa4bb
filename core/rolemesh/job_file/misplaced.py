"""Errors for keys of a job file that belong to another place in it, or that name a plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_origin

from rolemesh.errors import JobFileError
from rolemesh.job_file.places import COMMAND_LINE, Path, Places, dotted, flow_yaml
from rolemesh.job_file.problems import has_key, is_model, items_of, keys_of

if TYPE_CHECKING:
    from rolemesh.job_file.overrides import Types

SHOWN = 60
"""Characters of a value that a remedy shows; longer values are left out."""
_DEEPEST = 6
"""Maximum number of parts of the places that are searched."""


def misplaced(
    types: Types, data: Any, places: Places, path: Path, where: str
) -> JobFileError | None:
    """Return the error for the unknown key at `path` if another place may have it, or if it names a
    plugin; else None. The remedy says what to write in the nearest place, or in one of several.

    `where` is the place of the key. `data` is the job as written, without values of variables.
    """
    above, key = path[:-1], path[-1]
    value = _value(data, path)
    value = "…" if len(flow_yaml(value)) > SHOWN else value
    homes: dict[Path, int] = {}
    for found in _homes(types, data, key, (), data) if key not in ("use", "options") else ():
        known, rest = places.resolve(found)
        home = (*known, *rest)
        shared = next(n for n in range(len(above), -1, -1) if home[:n] == above[:n])
        of_another = shared < len(above) and "options" in home[shared:] and home[0] != "engine"
        if not of_another and (*home, key) not in places.lines:
            unlike = 2 * (home == ("plugins",) and not isinstance(value, list))
            homes[home] = len(home) + len(above) - 2 * shared + unlike
    if not homes:
        remedy = _named(types, data, places, path, value)
        return JobFileError(f"unknown key {key!r}", where=where, remedy=remedy) if remedy else None
    near = [home for home, distance in homes.items() if distance == min(homes.values())]
    what = f"{key!r} belongs {' or '.join(_inside(home) or 'at the top' for home in near)}"
    lines = [_line(data, places, home, {key: value}) for home in near]
    if where.startswith(written := f"{COMMAND_LINE}: {dotted(path)}"):
        lines = [f"{dotted((*home, key))}{where.removeprefix(written)}" for home in near]
    return JobFileError(what, where=where, remedy=f"write {', or '.join(lines)}")


def _homes(types: Types, data: Any, key: Any, at: Path, here: Any) -> Iterator[Path]:
    """Yield the places of mappings that may have `key`, from `at` on, where the value `here` is."""
    found = list[Any]()
    for each in types(data, at):
        single = {get_origin(each)} & {list} and isinstance(here, dict)
        found += items_of(each) if single else [each]
    if has_key(found, (key,)):
        yield at
    here = dict(enumerate(here)) if isinstance(here, list) else here
    here = here if isinstance(here, dict) else {}
    for part in (keys_of(found) or here) if len(at) < _DEEPEST else ():
        yield from _homes(types, data, key, (*at, part), here.get(part))


def _line(data: Any, places: Places, home: Path, added: Any) -> str:
    """Return what to write, and where, so that the mapping `home` has the keys of `added`."""
    at, rest = places.resolve(home)
    added = _nested(rest, added)
    if isinstance(name := _value(data, at), str):  # a plugin's bare name
        return f"{flow_yaml({'use': name, **added})} for {dotted(at)}"
    return f"{flow_yaml(added)[1:-1]} {_inside(at)}".rstrip()


def _named(types: Types, data: Any, places: Places, path: Path, value: Any) -> str:
    """Return what to write for a key that names a plugin, or whose value does; else ""."""
    above, key = path[:-1], path[-1]
    use = {"use": key, **({"options": value} if value else {})}
    if above:
        is_use = "use" in keys_of(types(data, above)) and (*above, "use") not in places.lines
        homes = [above] if is_use else []
    else:
        keys = keys_of(types(data, ()))
        homes = [(each, 0) for each in keys if {list} & {*map(get_origin, types(data, (each,)))}]
        homes += [("plugins", kind, 0) for kind in keys_of(types(data, ("plugins",)))]
        use = {"use": value} if isinstance(value, str) and value != "…" else use
        use = value if isinstance(value, dict) and "use" in value else use
    fits = [at for at in homes if any(map(is_model, types(_nested(at, use), (*at, "options"))))]
    if fits and above:
        return f"write {flow_yaml(use)[1:-1]} {_inside(above)}"
    names = " or ".join(dotted(home[:-1]) for home in fits)
    return names and f"list {flow_yaml(use)} under {names}"


def _value(data: Any, path: Path) -> Any:
    """Return the value at `path`, which may leave out the index in a list of one; None if there is
    none."""
    for part in path:
        data = data[0] if isinstance(data, list) and isinstance(part, str) else data
        data = data.get(part) if isinstance(data, dict) else data[part]
    return data


def _nested(path: Path, value: Any) -> Any:
    for part in reversed(path):
        value = {part: value}
    return value


def _inside(place: Path) -> str:
    return f"in {dotted(place)}" if place else ""
