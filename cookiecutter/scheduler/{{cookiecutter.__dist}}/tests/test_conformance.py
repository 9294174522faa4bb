"""What every placement strategy must hold; `rolemesh plugins check .` runs it too, and prints a certificate."""

from rolemesh_testing import SchedulerConformance


class TestConformance(SchedulerConformance):
    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"roles": "all"},)
