"""The standard tests of a backend, for the two that there are."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from rolemesh_testing import BackendConformance


class TestLocal(BackendConformance):
    plugin = "local"
    bad_options = ({"nodes": "nonsense"},)


@pytest.mark.ray
@pytest.mark.soak  # `plugins/backends/ray/tests` and the jobs on Ray ask for the same, and are in every test run
class TestRay(BackendConformance):
    plugin = "ray"

    @pytest.fixture
    def checked_options(self, cls: type[Any], ray_address: str) -> BaseModel:
        """On the Ray of this test run."""
        self.options = {"address": ray_address}  # type: ignore[misc]
        checked: BaseModel = cls.Options.model_validate(self.options)
        return checked
