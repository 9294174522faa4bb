"""The settings in a run's job file, and those that differ between two runs. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Difference", "differences", "settings"]


class Difference(NamedTuple):
    """A setting by its path, such as ``roles.trainer.options.lr``, with its value in two job files; "" if it lacks."""

    name: str
    one: str
    other: str


def differences(one: str, other: str) -> list[Difference]:
    """Return the settings that differ between two job files, in the order in which they come."""
    first, second = settings(one), settings(other)
    names = dict.fromkeys([*first, *second])
    found = (Difference(name, first.get(name, ""), second.get(name, "")) for name in names)
    return [each for each in found if each.one != each.other]


def settings(text: str) -> dict[str, str]:
    """Return the values in a run's job file by their path. Values of a list are one value.

    A run's job file is YAML in block style, as the engine writes it. A parser would also follow what others have put
    into a copied one, such as aliases that grow without bound.
    """
    found: dict[str, list[str]] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        bare = line.lstrip(" -")
        if not bare or bare.startswith("#"):
            continue
        indent = len(line) - len(bare)
        while above and above[-1][0] >= indent:
            above.pop()
        name, colon, value = bare.partition(":")
        if colon and not value:
            above.append((indent, name))
            continue
        is_value = not colon or not value.startswith(" ")
        path = [name for _, name in above] + ([] if is_value else [name])
        found.setdefault(".".join(path), []).append(bare if is_value else value.strip())
    return {path: ", ".join(values) for path, values in found.items()}
