"""The output of a process on a full disk."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.engine.agent.conftest import Node

from rolemesh_processes.beginning import raise_limits

PRINTS = """
import os
import subprocess
import sys


class Work:
    def step(self) -> None:
        print("first")
        for _ in range(2000):
            print("a line of what a workload has to say, again and again" * 2)
        print("on the other stream", file=sys.stderr)
        sys.stderr.flush()
        with open(os.environ["LOG"], "r+") as log:
            log.truncate(6)
        print("last")
"""


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounts a small file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_rank_whose_log_is_on_a_full_disk_loses_lines_and_no_step(node: Callable[..., Node], full: Path) -> None:
    here = node(PRINTS, {"work": "step"}, steps=1, run_dir=full, env={"LOG": str(full / "logs" / "work-0.log")})
    here.launch("work")
    here.run("work", granted=0)
    here.rank("work", "done")
    said = here.log("work")
    assert said.startswith("first\n")
    assert "bytes of output are missing here: No space left on device]\nlast\n" in said


def test_a_log_that_cannot_be_made_costs_the_output_only(full: Path) -> None:
    program = "from rolemesh_processes.output import write_to\nimport sys\n"
    program += "write_to(sys.argv[1]); print('lost'); sys.exit(3)"
    (full / "file").write_text("")
    assert subprocess.run([sys.executable, "-c", program, str(full / "file" / "log")], check=False).returncode == 3


def test_a_process_may_open_as_many_files_as_its_hard_limit_says() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_limits()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], 1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
