"""The standard tests of a store, for the default one and for a real PostgreSQL."""

from __future__ import annotations

import pytest

from rolemesh_testing import StoreConformance


class TestSqlite(StoreConformance):
    plugin = "sqlite"


class TestPostgresql(StoreConformance):
    plugin = "postgresql"

    @pytest.fixture
    def database(self, postgres: str) -> str:
        """The server of this test run."""
        return postgres
