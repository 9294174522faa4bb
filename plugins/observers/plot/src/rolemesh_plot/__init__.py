"""Pictures of a job's metrics. Importing this imports no matplotlib."""

from rolemesh_plot.observer import PlotObserver, PlotOptions

__all__ = ["PlotObserver", "PlotOptions"]
