"""The tests of the kind's declaration, and those that every grader must pass, from whatever distribution."""

from typing import Any

import pytest
from pydantic import BaseModel
from rolemesh_testing import KindConformance, PluginConformance

from {{ cookiecutter.__pkg }} import Brevity, Grader

ANSWERS = ("", "yes", "I do not know.", "ß ≠ ss", "word " * 1000)


class TestConformance(KindConformance):
    """The tests of this kind's declaration."""

    plugin = "{{ cookiecutter.__key }}"


class GraderConformance(PluginConformance):
    """The tests of a grader. Subclass it with `plugin`, `options` and `bad_options`."""

    kind = "{{ cookiecutter.__key }}"

    @pytest.fixture
    def grader(self, cls: type[Grader], checked_options: BaseModel) -> Grader:
        """The grader."""
        return cls(checked_options)

    def test_grades_are_numbers_from_0_to_1(self, grader: Grader) -> None:
        """An empty answer gets a grade, too, and a very long one."""
        for answer in ANSWERS:
            grade: Any = grader.grade(answer)
            assert isinstance(grade, float), f"grade({answer[:20]!r}) is {grade!r}, which is no float"
            assert 0 <= grade <= 1, f"grade({answer[:20]!r}) is {grade}"

    def test_the_same_answer_has_the_same_grade(self, grader: Grader) -> None:
        """A rank that starts again grades again: no chance, and no memory."""
        first = [grader.grade(answer) for answer in ANSWERS]
        again = [grader.grade(answer) for answer in reversed(ANSWERS)]
        assert first == again[::-1]


class TestBrevity(GraderConformance):
    """The tests of the grader that comes with the kind."""

    plugin = "brevity"
    options = {"letters": 10}
    bad_options = ({"letters": 0}, {"words": 3})


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
