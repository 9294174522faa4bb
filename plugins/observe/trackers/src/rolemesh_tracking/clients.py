"""Programs' clients, each of which an extra of ``rolemesh-trackers`` brings."""

from __future__ import annotations

from importlib.util import find_spec

from rolemesh.errors import PluginError

__all__ = ["need_client"]


def need_client(module: str, extra: str) -> None:
    """Raise PluginError if the module, which `extra` brings, is not installed. The module is not imported."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # nor is the package that would have it
        found = None
    if found is None:
        remedy = f"pip install 'rolemesh-trackers[{extra}]'"
        raise PluginError(f"the observer {extra!r} needs {module}", kind="missing", remedy=remedy)
