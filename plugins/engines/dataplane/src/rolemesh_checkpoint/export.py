"""Find workloads that can write their state in a form that other tools read."""

from __future__ import annotations

from rolemesh.api.workload import Workload

__all__ = ["can_export"]


def can_export(cls: type[Workload]) -> bool:
    """Return whether the workload has an `export` of its own."""
    return getattr(cls.export, "__func__", None) is not Workload.export.__func__  # type: ignore[attr-defined]
