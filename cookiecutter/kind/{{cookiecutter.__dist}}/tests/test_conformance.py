"""The tests that every declaration of a kind must pass, and those of this kind's plugins."""

from {{ cookiecutter.__pkg }}.conformance import BrevityConformance, Conformance


class TestConformance(Conformance):
    """The tests that pytest finds; the class in the wheel has their data."""


class TestBrevity(BrevityConformance):
    """The same for the grader that comes with the kind."""
