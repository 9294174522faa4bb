"""More ranks for a role that delays others, fewer for a role that waits."""

from __future__ import annotations

from rolemesh_scaler_backlog.scaler import BacklogOptions, BacklogScaler

__all__ = ["BacklogOptions", "BacklogScaler"]
