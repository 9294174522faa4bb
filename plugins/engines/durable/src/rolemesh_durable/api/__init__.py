"""The public modules of the engine beside the kinds of plugins: `extensions`, `history`, `hosting`, `jobs` and
`testing`.

Other distributions import these modules, `content`, and the modules of the kinds: `backends`, `checks`, `scalers` and
`stores`. They import no other module of the engine; ``make lint`` checks ours. A module here imports a
name at its first use, so a process loads only the parts that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["importer", "names"]


def names(homes: Mapping[str, str]) -> list[str]:
    """The names in `homes`, which has the names of each module, separated by spaces."""
    return sorted(name for each in homes.values() for name in each.split())


def importer(facade: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The function ``__getattr__`` of the module `facade`, which takes each name from its module of the engine."""
    home = {name: module for module, each in homes.items() for name in each.split()}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {facade!r} has no attribute {name!r}")
        return getattr(import_module(f"rolemesh_durable.{home[name]}"), name)

    return get
