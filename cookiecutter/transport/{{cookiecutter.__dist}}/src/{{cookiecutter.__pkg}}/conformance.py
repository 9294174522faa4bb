"""The tests that every transport must pass; the wheel ships them, and names them in its entry points."""

from rolemesh_testing import TransportConformance

__all__ = ["Conformance"]


class Conformance(TransportConformance):
    """What this transport is tested with; `rolemesh plugins check` runs it where the wheel is installed."""

    plugin = "{{ cookiecutter.name }}"
