"""The base class of diagnosers. Failures and verdicts are in `rolemesh.api.failures`."""

from __future__ import annotations

from rolemesh.api.plugin import Plugin


class Diagnoser(Plugin):
    """Base class of diagnosers (entry-point group ``rolemesh.diagnosers``): implement the hook
    `diagnose`.

    One instance per job, in the master. The master calls levels that have the hook first, then
    the diagnosers, each in the job file's order; the first verdict counts. The hook must be pure.
    """
