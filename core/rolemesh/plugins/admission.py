"""The check of plugins before anything of them is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rolemesh.plugins.discovery import PluginRecord


class Admission(NamedTuple):
    """A check of each plugin before anything of it is imported, with the argument of ``rolemesh
    run`` that requested it.

    `look` takes the record and the place that names it. It returns the record, possibly with the
    `sha256` that its content must have in every process, or raises `PluginError` if the plugin must
    not be used.
    """

    look: Callable[[PluginRecord, str], PluginRecord]
    argument: str
