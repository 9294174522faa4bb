"""The extensions that the engine ships, in the order in which their hooks run."""

from __future__ import annotations

from importlib import import_module
from typing import Final, Literal, NamedTuple

from rolemesh_durable.extensions import Extension

__all__ = ["SHIPPED", "Shipped", "shipped"]


class Shipped(NamedTuple):
    """An extension of the engine."""

    reference: str
    """Its class, as ``module:Class``."""
    runs_in: tuple[Literal["rank", "master"], ...]
    """The processes in which it has a part."""


SHIPPED: Final = (Shipped("rolemesh_durable.extensions.calls.extension:Calls", ("rank",)),)
"""The order is fixed: hooks of one name run in it, and wrap an operator from the inside out. With another order a
repeated step could make another result. Extensions that a job lists follow behind these."""


def shipped(process: Literal["rank", "master"]) -> tuple[type[Extension], ...]:
    """Import the shipped extensions that have a part in `process`."""
    found = []
    for reference, runs_in in SHIPPED:
        if process in runs_in:
            module, _, name = reference.partition(":")
            found.append(getattr(import_module(module), name))
    return tuple(found)
