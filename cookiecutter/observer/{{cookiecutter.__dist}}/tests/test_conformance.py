"""What every observer must hold; `rolemesh plugins check .` runs it too, and prints a certificate."""

from rolemesh_testing import ObserverConformance


class TestConformance(ObserverConformance):
    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"file": "../metrics.csv"}, {"metrics": 3})
