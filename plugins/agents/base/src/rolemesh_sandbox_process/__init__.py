"""The sandbox `guarded`, and the base class of sandboxes that start their commands in another way.

The import is lazy: the guard of a sandbox imports only the package below it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolemesh_sandbox_process.guard.namespaces import INSIDE
    from rolemesh_sandbox_process.guarded import GuardedOptions, GuardedSandbox, Isolation
    from rolemesh_sandbox_process.sandbox import ProcessOptions, ProcessSandbox

__all__ = ["INSIDE", "GuardedOptions", "GuardedSandbox", "Isolation", "ProcessOptions", "ProcessSandbox"]

_HOME = {
    "INSIDE": "guard.namespaces",
    "GuardedOptions": "guarded",
    "GuardedSandbox": "guarded",
    "Isolation": "guarded",
    "ProcessOptions": "sandbox",
    "ProcessSandbox": "sandbox",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
