"""Ranks become as many as the work keeps busy, within what the job and the cluster allow."""

import pytest
from rolemesh_durable.scalers import Load, RoleLoad
from rolemesh_testing import ScalerConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(ScalerConformance):
    """The tests that every scaler must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"busy": 0}, {"agree": 0})


SCALER = {{ cookiecutter.__class }}({{ cookiecutter.__class }}.Options(busy=0.5, slack=0.2))


def sizes(busy: float, ranks: int = 4, least: int = 1, most: int = 16, room: int = 16) -> dict[str, int]:
    wanted = SCALER.decide(Load(10.0, 60.0, (RoleLoad("a", ranks, least, most, room, busy),), ()))
    assert wanted is None or "of the time" in wanted.reason
    return wanted.sizes if wanted is not None else {}


@pytest.mark.parametrize(("busy", "size"), [(1.0, 8), (0.75, 6), (0.25, 2), (0.0, 1)])
def test_ranks_become_as_many_as_the_work_keeps_busy(busy: float, size: int) -> None:
    assert sizes(busy) == {"a": size}


def test_a_small_change_is_none() -> None:
    assert sizes(0.5) == sizes(0.55, ranks=10) == sizes(0.45) == {}


def test_no_role_has_more_ranks_than_it_may_have_or_than_find_room() -> None:
    assert sizes(1.0, most=6) == {"a": 6}
    assert sizes(1.0, room=5) == {"a": 5}
    assert sizes(0.0, least=3) == {"a": 3}
    assert sizes(1.0, least=4, most=4) == {}
