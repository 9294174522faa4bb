"""A user of a container may have no name; messages then have the number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAY = "from rolemesh_runtime.user import user_name; print(user_name())"


def test_a_user_without_a_name_has_a_number() -> None:
    command = ["unshare", "--user", "--map-user=54321", sys.executable, "-c", SAY]
    names = ("LOGNAME", "USER", "LNAME", "USERNAME")
    environ = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"needs a user namespace: {done.stderr.strip()}")
    assert done.stdout == "uid 54321\n", done.stderr
