"""The observer `trackio`. Importing this package does not import Trackio."""

from rolemesh_trackio.observer import TrackioObserver, TrackioOptions

__all__ = ["TrackioObserver", "TrackioOptions"]
