"""A plugin of the kind: short answers are good."""

from pydantic import BaseModel, Field

from {{ cookiecutter.__pkg }}.kind import Grader

__all__ = ["Brevity"]


class Brevity(Grader):
    """Grades an answer by its length: 1 if it is empty, 0 from `letters` letters on."""

    class Options(BaseModel, extra="forbid"):
        """Options in the job file."""

        letters: int = Field(default=100, ge=1, description="Answers of so many letters have the grade 0.")

    options: Options

    def grade(self, answer: str) -> float:
        """See `Grader.grade`."""
        return max(0.0, 1.0 - len(answer) / self.options.letters)
