"""The tests that every {{ cookiecutter._what }} must pass; the wheel ships them, and names them in its entry points."""

from rolemesh_testing import {{ cookiecutter._kind | title }}Conformance

__all__ = ["Conformance"]


class Conformance({{ cookiecutter._kind | title }}Conformance):
    """Data for the tests; `rolemesh plugins check` runs them where the wheel is installed."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = {{ cookiecutter._bad_options }}
