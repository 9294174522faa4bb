"""The tests that every diagnoser must pass; the wheel ships them, and names them in its entry points."""

from rolemesh_testing import DiagnoserConformance

__all__ = ["Conformance"]


class Conformance(DiagnoserConformance):
    """What this diagnoser is tested with; `rolemesh plugins check` runs it where the wheel is installed."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"times": 0}, {"softwear": "x"})
