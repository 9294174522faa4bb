"""The tests that every plugin of its kind must pass."""

from {{ cookiecutter.__pkg }}.conformance import Conformance


class TestConformance(Conformance):
    """The tests that pytest finds; the class in the wheel has their data."""
