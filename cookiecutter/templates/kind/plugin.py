"""The kind `{{ cookiecutter.__key }}`: graders, and one of them. Any distribution may have more."""

from abc import ABC, abstractmethod

from pydantic import BaseModel, Field
from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind

__all__ = ["KIND", "Brevity", "Grader"]

KIND = Kind(
    "{{ cookiecutter.__key }}",
    "grader",
    "{{ cookiecutter.__pkg }}:Grader",
    ("rank",),
    conformance="{{ cookiecutter.__pkg }}.test_plugin:GraderConformance",
)


class Grader(Plugin, ABC):
    """Base of graders, which distributions offer in the entry-point group of this kind. One object per rank."""

    @abstractmethod
    def grade(self, answer: str) -> float:
        """How good the answer is, from 0 to 1. Pure: the same answer always has the same grade."""


class Brevity(Grader):
    """Grades an answer by its length: 1 if it is empty, 0 from `letters` letters on."""

    class Options(BaseModel, extra="forbid"):
        """Options in the job file."""

        letters: int = Field(default=100, ge=1, description="An answer of this length has the grade 0.")

    options: Options

    def grade(self, answer: str) -> float:
        """See `Grader.grade`."""
        return max(0.0, 1.0 - len(answer) / self.options.letters)
