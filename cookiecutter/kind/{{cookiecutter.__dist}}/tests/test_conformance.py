"""The tests that every declaration of a kind must pass, and those of this kind's plugins."""

from {{ cookiecutter.__pkg }}.conformance import BrevityConformance, Conformance


class TestConformance(Conformance):
    """Here pytest finds them; what they are given stands in the class that the wheel ships."""


class TestBrevity(BrevityConformance):
    """The same for the grader that comes with the kind."""
