"""For workloads with torch: ``rolemesh_torch.join(ctx)`` makes a process group of a collective role's ranks."""

from rolemesh_torch.group import join

__all__ = ["join"]
