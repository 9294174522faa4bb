"""This machine has the cores and the memory that its control groups leave to this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
mount -t tmpfs none /sys/fs/cgroup
mount --bind "$1"/groups /proc/$$/cgroup
cp -r "$1"/files/. /sys/fs/cgroup/
exec "$2" -c '
from rolemesh.placement.nodes import this_machine
[node] = this_machine().nodes
print(node.cpu, node.custom["memory_gb"])'
"""
GB = 10**9
VERSION_2 = {
    "slice/memory.max": f"{3 * GB}",
    "slice/cpu.max": "150000 100000",
    "slice/pod/memory.max": "max",
    "slice/pod/memory.high": f"{2 * GB}",
    "slice/pod/cpu.max": "max 100000",
    "slice/pod/own/memory.max": f"{9 * GB}",
    "slice/pod/own/cpu.max": "190000 100000",
}
VERSION_1 = {
    "memory/docker/memory.limit_in_bytes": f"{2 * GB}",
    "memory/docker/inner/memory.limit_in_bytes": "9223372036854771712",
    "cpu,cpuacct/cpu.cfs_quota_us": "150000",
    "cpu,cpuacct/cpu.cfs_period_us": "100000",
    "cpu,cpuacct/docker/cpu.cfs_quota_us": "-1",
    "cpu,cpuacct/docker/cpu.cfs_period_us": "100000",
}
NO_LIMIT = {f"{group}{name}": text for group in ("slice/", "slice/pod/", "slice/pod/own/")
            for name, text in (("memory.max", "max"), ("memory.high", "max"), ("cpu.max", "max 100000"))}  # fmt: skip
BELOW_USAGE = {"pod/memory.max": f"{2 * GB}", "pod/memory.current": f"{5 * GB}", "pod/cpu.max": "150000 100000"}
OF_A_CONTAINER = {"memory.max": f"{2 * GB}", "cpu.max": "150000 100000"}
CASES = {
    "version 2, nested": ("0::/slice/pod/own\n", VERSION_2),
    "version 2, a limit below what is used": ("0::/pod\n", BELOW_USAGE),
    "version 1, nested": ("5:memory:/docker/inner\n4:cpu,cpuacct:/docker\n", VERSION_1),
    "a container that sees its own group as the root": ("0::/\n", OF_A_CONTAINER),
    "a path of the host, in a container": ("0::/system.slice/docker-1.scope\n", OF_A_CONTAINER),
    "both versions": ("5:memory:/docker/inner\n0::/\n", {**VERSION_1, "unified/cpu.max": "150000 100000"}),
}


def seen(tmp_path: Path, groups: str, files: dict[str, str]) -> list[str]:
    """Return the cores and the memory that a process with these control groups sees."""
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_text(text + "\n")
    command = ["unshare", "--map-root-user", "--mount", "sh", "-e", "-c", SHOW, "-", str(tmp_path), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"needs a mount namespace: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("case", CASES)
def test_a_machine_has_the_least_of_what_its_control_groups_allow(tmp_path: Path, case: str) -> None:
    assert seen(tmp_path, *CASES[case]) == [str(min(1.5, len(os.sched_getaffinity(0)))), "2.0"]


def test_a_machine_without_limits_has_all_that_there_is(tmp_path: Path) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = [str(float(len(os.sched_getaffinity(0)))), str(total // 10**8 / 10)]
    assert seen(tmp_path, "0::/slice/pod/own\n", NO_LIMIT) == cores
