"""More ranks for the role that others wait for, fewer for the one that waits."""

from __future__ import annotations

from rolemesh_scaler_backlog.scaler import BacklogOptions, BacklogScaler

__all__ = ["BacklogOptions", "BacklogScaler"]
