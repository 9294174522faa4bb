"""Tools for workloads with torch: process groups of collective roles, gradients from other roles, and the order of a
pipeline's passes. Names are imported when they are first used, so a flow that needs `passes` does not import torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolemesh_torch.graphs import Graphs
    from rolemesh_torch.group import join
    from rolemesh_torch.pipeline import Pass, passes

__all__ = ["Graphs", "Pass", "join", "passes"]

_HOME = {"Graphs": "graphs", "Pass": "pipeline", "join": "group", "passes": "pipeline"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rolemesh_torch' has no attribute {name!r}")
    return getattr(import_module(f"rolemesh_torch.{_HOME[name]}"), name)
