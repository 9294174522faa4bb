"""One HTML file about a run. Importing this package reads nothing."""

from rolemesh_report.command import ReportAtEnd, ReportVerb
from rolemesh_report.observer import ReportObserver

__all__ = ["ReportAtEnd", "ReportObserver", "ReportVerb"]
