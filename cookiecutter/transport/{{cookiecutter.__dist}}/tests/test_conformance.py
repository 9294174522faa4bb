"""What every transport must hold; `rolemesh plugins check .` runs it too, and prints a certificate."""

from rolemesh_testing import TransportConformance


class TestConformance(TransportConformance):
    plugin = "{{ cookiecutter.name }}"
