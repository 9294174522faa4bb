"""The API of a diagnoser: its base class. What it judges and says is in `rolemesh.api.failures`."""

from __future__ import annotations

from rolemesh.api.plugin import Plugin


class Diagnoser(Plugin):
    """Base class of diagnosers (entry-point group ``rolemesh.diagnosers``): implement the hook
    `diagnose`.

    One instance per job, in the master. The levels that have the hook are asked first, then the
    diagnosers, each in the job file's order; the first verdict counts. The hook must be pure.
    """
