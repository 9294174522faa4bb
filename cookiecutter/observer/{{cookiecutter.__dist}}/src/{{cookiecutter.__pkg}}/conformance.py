"""The tests that every observer must pass; the wheel ships them, and names them in its entry points."""

from rolemesh_testing import ObserverConformance

__all__ = ["Conformance"]


class Conformance(ObserverConformance):
    """What this observer is tested with; `rolemesh plugins check` runs it where the wheel is installed."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"file": "../metrics.csv"}, {"metrics": 3})
