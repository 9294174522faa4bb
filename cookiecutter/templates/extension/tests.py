"""Each rank writes a record that names it, at the distance that the option sets."""

from types import SimpleNamespace
from typing import Any

from rolemesh_testing import ExtensionConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(ExtensionConformance):
    """The tests that every extension must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"every": 0}, {"every": "often"})


def records(every: int, steps: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    rank: Any = SimpleNamespace(ctx=SimpleNamespace(role="adder", rank=1), record=found.append)
    options = {{ cookiecutter.__class }}.Options(every=every)
    part = {{ cookiecutter.__class }}(options).in_rank(rank)
    for step in range(steps):
        part.step_done(step, False)
    return found


def test_a_rank_records_after_each_step() -> None:
    assert [set(record) for record in records(1, 3)] == [{"seconds adder/1"}] * 3


def test_a_rank_records_every_other_step() -> None:
    assert len(records(2, 5)) == 2
