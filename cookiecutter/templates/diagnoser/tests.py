"""Messages of the hardware make a node suspect, hopeless ones end the job, and others have no verdict."""

import pytest
from rolemesh import Failure, JobView
from rolemesh_testing import DiagnoserConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(DiagnoserConformance):
    """The tests that every diagnoser must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"times": 0}, {"softwear": "x"})


DIAGNOSER = {{ cookiecutter.__class }}({{ cookiecutter.__class }}.Options(times=2))
BROKEN = Failure("exception", "a", 0, "n0", message="Xid 79: the GPU has fallen off the bus")


def view(*earlier: Failure) -> JobView:
    return JobView("job", 1, 2, (), (), failures=earlier)


def test_a_failure_that_comes_again_on_a_node_is_its_fault() -> None:
    assert DIAGNOSER.diagnose(BROKEN, view()) is None
    verdict = DIAGNOSER.diagnose(BROKEN, view(BROKEN))
    assert verdict is not None
    assert verdict.kind == "hardware"


def test_a_failure_on_another_node_does_not_count() -> None:
    assert DIAGNOSER.diagnose(BROKEN, view(Failure("exception", "a", 1, "n1", message=BROKEN.message))) is None


@pytest.mark.parametrize(("message", "fatal"), [("disk quota exceeded", True), ("boom", None)])
def test_only_the_hopeless_is_fatal(message: str, fatal: bool | None) -> None:
    verdict = DIAGNOSER.diagnose(Failure("exception", "a", 0, "n0", message=message), view())
    assert (verdict and verdict.fatal) == fatal
