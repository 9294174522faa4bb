"""``rolemesh launch``: a training script as it is, run by rolemesh; and `track`, with which its state is kept."""

from rolemesh_launch.tracking import Run, track

__all__ = ["Run", "track"]
