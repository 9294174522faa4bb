"""The kind: what its plugins are, and where they run. Any distribution may have plugins of it."""

from abc import ABC, abstractmethod

from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind

__all__ = ["KIND", "Grader"]

KIND = Kind(
    "{{ cookiecutter.__key }}",
    "grader",
    "{{ cookiecutter.__pkg }}.kind:Grader",
    ("rank",),
    conformance="{{ cookiecutter.__pkg }}.conformance:GraderConformance",
)


class Grader(Plugin, ABC):
    """Base of graders, which distributions offer in the entry-point group of this kind. One object per rank."""

    @abstractmethod
    def grade(self, answer: str) -> float:
        """How good the answer is, from 0 to 1. Pure: the same answer always has the same grade."""
