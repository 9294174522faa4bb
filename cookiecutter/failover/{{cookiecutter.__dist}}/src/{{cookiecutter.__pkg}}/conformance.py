"""The tests that every failover level must pass; the wheel ships them, and names them in its entry points."""

from rolemesh_testing import FailoverConformance

__all__ = ["Conformance"]


class Conformance(FailoverConformance):
    """What this failover level is tested with; `rolemesh plugins check` runs it where the wheel is installed."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"patience_s": -1}, {"factor": 0.5})
