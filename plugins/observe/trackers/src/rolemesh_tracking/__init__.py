"""The base of observers that send a job's metrics and events to an experiment tracker. Imports no tracker's library."""

from rolemesh_tracking.cursor import Cursor
from rolemesh_tracking.lines import Line, Note
from rolemesh_tracking.names import distinct
from rolemesh_tracking.options import TrackerOptions
from rolemesh_tracking.reading import newest, told
from rolemesh_tracking.tracker import Refused, Tracker

__all__ = ["Cursor", "Line", "Note", "Refused", "Tracker", "TrackerOptions", "distinct", "newest", "told"]
