"""What every failover level must hold; `rolemesh plugins check .` runs it too, and prints a certificate."""

from rolemesh_testing import FailoverConformance


class TestConformance(FailoverConformance):
    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"patience_s": -1}, {"factor": 0.5})
