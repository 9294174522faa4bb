"""Which Ray a driver joins."""

from __future__ import annotations

import os

import pytest

from rolemesh.errors import BackendError
from rolemesh_ray.connection import refuse_foreign


@pytest.mark.ray
def test_the_ray_of_another_user_is_refused_with_a_way_to_use_it(
    ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself would abort the process, since its sockets are closed to others."""
    refuse_foreign(ray_address)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(BackendError, match=f"user {owner} has started the Ray at {ray_address}") as caught:
        refuse_foreign(ray_address)
    assert "ray job submit" in str(caught.value.remedy)
