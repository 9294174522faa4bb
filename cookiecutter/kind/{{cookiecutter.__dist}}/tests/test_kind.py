"""Short answers are good; a grader that breaks the rules of the kind is found."""

import pytest

from {{ cookiecutter.__pkg }} import Brevity, Grader
from {{ cookiecutter.__pkg }}.conformance import GraderConformance


class Generous(Grader):
    """Gives more than there is."""

    def grade(self, answer: str) -> float:
        return 2.0


@pytest.mark.parametrize(("answer", "grade"), [("", 1.0), ("12345", 0.5), ("1234567890", 0.0), ("x" * 99, 0.0)])
def test_short_answers_are_good(answer: str, grade: float) -> None:
    assert Brevity(Brevity.Options(letters=10)).grade(answer) == grade


def test_a_grade_above_1_is_found() -> None:
    with pytest.raises(AssertionError, match=r"is 2\.0"):
        GraderConformance().test_grades_are_numbers_from_0_to_1(Generous(Grader.Options()))
