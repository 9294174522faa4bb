"""The tests that every placement strategy must pass; the wheel ships them, and names them in its entry points."""

from rolemesh_testing import SchedulerConformance

__all__ = ["Conformance"]


class Conformance(SchedulerConformance):
    """What this placement strategy is tested with; `rolemesh plugins check` runs it where the wheel is installed."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"roles": "all"},)
