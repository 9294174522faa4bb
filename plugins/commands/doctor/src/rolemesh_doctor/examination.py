"""The API of examinations: findings that other distributions add to `rolemesh doctor`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind
from rolemesh_doctor.finding import Finding

__all__ = ["KIND", "Examination"]

KIND = Kind(
    "doctor",
    "examination",
    "rolemesh_doctor.examination:Examination",
    ("command line",),
    listed=False,
    conformance="rolemesh_testing:ExaminationConformance",
)


class Examination(Plugin, ABC):
    """Base of examinations (entry-point group ``rolemesh.doctor``). It is made without options."""

    @abstractmethod
    def examine(self) -> Iterable[Finding]:
        """Look at one thing on this machine.

        Called once, in a process of its own that is killed after five seconds. What it raises becomes a finding.
        """
