"""The tests that every plugin of its kind must pass."""

from {{ cookiecutter.__pkg }}.conformance import Conformance


class TestConformance(Conformance):
    """Here pytest finds them; what they are given stands in the class that the wheel ships."""
