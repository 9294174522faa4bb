"""Signals that end `rolemesh run` as Ctrl-C does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

WAIT = """
import os, time
from rolemesh import flow


class Wait:
    def __init__(self, ctx):
        pass

    def step(self) -> None:
        print("waits", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.02)


@flow
def wait(job):
    job.one.step()
"""
JOB = "name: waits\nsteps: 1\nflow: wait.py:wait\nroles:\n  one: {use: function, options: {target: 'wait.py:Wait'}}\n"


@pytest.mark.parametrize(("trap", "code"), [("", 130), ("trap '' TERM HUP;", 0)], ids=["heard", "ignored"])
def test_a_signal_ends_the_command_unless_it_is_ignored_where_the_command_is_given(
    tmp_path: Path, trap: str, code: int
) -> None:
    (tmp_path / "wait.py").write_text(WAIT)
    (tmp_path / "job.yaml").write_text(JOB)
    rolemesh = Path(sys.executable).with_name("rolemesh")
    command = ["sh", "-c", f"{trap} exec {rolemesh} run job.yaml --engine inline"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "waits" in iter(process.stdout.readline, "").__next__()
    for number in (signal.SIGTERM, signal.SIGHUP)[: 2 if trap else 1]:
        process.send_signal(number)
    if trap:
        (tmp_path / "go").touch()
    _, said = process.communicate()
    assert process.returncode == code, said
