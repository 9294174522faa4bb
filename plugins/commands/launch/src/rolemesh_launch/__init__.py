"""``rolemesh launch`` runs an unchanged training script in rolemesh; `track` keeps the script's state."""

from rolemesh_launch.tracking import Run, track

__all__ = ["Run", "track"]
