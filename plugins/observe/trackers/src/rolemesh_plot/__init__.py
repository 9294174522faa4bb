"""Plots of a job's metrics. Importing this package does not import matplotlib."""

from rolemesh_plot.observer import PlotObserver, PlotOptions

__all__ = ["PlotObserver", "PlotOptions"]
