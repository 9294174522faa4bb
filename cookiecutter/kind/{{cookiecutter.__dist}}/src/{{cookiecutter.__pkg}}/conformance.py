"""The tests of the kind's declaration, and those that every grader must pass, from whatever distribution."""

from typing import Any

import pytest
from pydantic import BaseModel
from rolemesh_testing import KindConformance, PluginConformance

from {{ cookiecutter.__pkg }}.kind import Grader

__all__ = ["BrevityConformance", "Conformance", "GraderConformance"]

ANSWERS = ("", "yes", "I do not know.", "ß ≠ ss", "word " * 1000)


class Conformance(KindConformance):
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


class BrevityConformance(GraderConformance):
    """The tests of the grader that comes with the kind."""

    plugin = "brevity"
    options = {"letters": 10}
    bad_options = ({"letters": 0}, {"words": 3})
