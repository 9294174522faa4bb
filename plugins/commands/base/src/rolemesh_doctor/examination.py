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
    """Base class of examinations (entry-point group ``rolemesh.doctor``). They have no options."""

    @abstractmethod
    def examine(self) -> Iterable[Finding]:
        """Examine one aspect of this machine and return the findings.

        Called once, in a process of its own that is killed after five seconds. An exception becomes a finding.
        """
