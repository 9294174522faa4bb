"""A job starts a Ray of its own wherever its command starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
name: own
flow: flow.py:flow
steps: 2
roles: {a: {use: function, resources: {cpu: 0.5}, options: {target: roles.py:tell}}}
"""
FLOW = "import rolemesh\n\n@rolemesh.flow\ndef flow(job):\n    job.a.tell()\n"
ROLES = "import os, sys\n\ndef tell() -> None:\n    print('rank', sys.executable, os.getcwd(), flush=True)\n"


@pytest.mark.ray
@pytest.mark.soak
def test_ranks_of_a_command_under_uv_run_with_a_long_tmpdir_are_those_of_the_command(tmp_path: Path) -> None:
    for name, text in {"job.yaml": JOB, "flow.py": FLOW, "roles.py": ROLES, "run": '"$@"; exit $?\n'}.items():
        (tmp_path / name).write_text(text)
    # Ray looks for a parent process that is called uv and has the argument run.
    shutil.copy(shutil.which("sh") or "/bin/sh", tmp_path / "uv")
    long = tmp_path / "scratch" / ("of-somebody-with-a-long-name-" * 3)
    long.mkdir(parents=True)
    rolemesh = str(Path(sys.executable).with_name("rolemesh"))
    command = [str(tmp_path / "uv"), "run", rolemesh, "run", "job.yaml", "--backend", "ray", "--no-report"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ | {"TMPDIR": str(long)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    log = (tmp_path / "runs" / "own" / "logs" / "a-0.log").read_text()
    assert f"rank {sys.executable} {tmp_path}" in log
