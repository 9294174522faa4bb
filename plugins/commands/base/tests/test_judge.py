"""The doctor's conclusions from given facts, without a look at this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from rolemesh_doctor import Finding, judge
from rolemesh_doctor.facts import (
    Abilities,
    Clock,
    Disk,
    Driver,
    Host,
    Installation,
    Limits,
    Network,
    Plugins,
    Python,
    Ray,
    SharedMemory,
    Torch,
    WorkingDir,
)

GB = 10**9
PYTHON = Python((3, 11, 7), "/usr/bin/python3", "Linux")
DRIVER = Driver("570.86.10", (12, 8), 2)
CPU, CUDA = Torch("2.13.0+cpu"), Torch("2.13.0", cuda="12.8")
RAY = Ray("2.60.0", "2.60.0")
CLOCK = Clock(1_790_000_000.0, 0.0, 0.05, 0.05)
DISK = Disk("/data/runs", 100 * GB, 1_000_000)
SHM = SharedMemory(16 * GB, 15 * GB)
changed = msgspec.structs.replace

FINE: list[tuple[Callable[[Any], Iterator[Finding]], Any, str]] = [
    (judge.python, PYTHON, "Python 3.11.7 on Linux"),
    (judge.python, changed(PYTHON, start_method="spawn"), "ranks are forked whatever it is"),
    (judge.torch, CPU, "is a CPU build; no NVIDIA driver"),
    (judge.torch, changed(CUDA, driver=DRIVER), "is a CUDA 12.8 build; NVIDIA driver 570.86.10, CUDA 12.8, 2 GPUs"),
    (judge.torch, Torch("2.13.0", hip="6.4"), "is a ROCm 6.4 build"),
    (judge.torch, Torch(), "torch is not installed, and needed only by roles that train or sample"),
    (judge.ray, Ray(), "Ray is not installed; jobs run with --backend local"),
    (judge.ray, Ray("2.60.0"), "rolemesh-ray is not installed"),
    (judge.ray, RAY, "none runs here"),
    (judge.ray, changed(RAY, wanted=""), "none runs here"),
    (judge.ray, changed(RAY, cluster="10.0.0.1:6379"), "the one at 10.0.0.1:6379 can be reached"),
    (judge.shm, SHM, "15.0 GB free of 16.0 GB"),
    (judge.limits, Limits(), "any number of files; any number of processes"),
    (judge.limits, Limits(65536, 8192, 100), "65,536 files; 8,092 more processes"),
    (judge.limits, Limits(65536, 0, 100, root=True), "any number of processes"),
    (judge.limits, Limits(memlock=65536), "any number of files"),
    (judge.abilities, Abilities({"fork": "", "pidfd": ""}), "fork, pidfd work"),
    (judge.abilities, Abilities({"fork": ""}, "Operation not permitted"), "no job needs them"),
    (judge.network, Network(), "28,232 ports"),
    (judge.host, Host("node-1"), "'node-1' has an address"),
    (judge.disk, DISK, "100.0 GB free"),
    (judge.disk, changed(DISK, files=-1), "100.0 GB free"),
    (judge.tmp, Disk("/tmp", GB), "/tmp has 1.0 GB free"),
    (judge.clock, CLOCK, "the clock is set"),
    (judge.clock, changed(CLOCK, wall_s=0.3), "the clock is set"),
    (judge.plugins, Plugins(63), "63 plugins are usable"),
    (judge.installation, Installation(), "no installation was left unfinished"),
    (judge.working_dir, WorkingDir("/home/a"), "/home/a hides no module"),
]
WRONG: list[tuple[Callable[[Any], Iterator[Finding]], Any, str, str, str]] = [
    (judge.python, changed(PYTHON, version=(3, 10, 2)), "error", "is too old", "python3.11 -m venv .venv"),
    (judge.python, changed(PYTHON, version=(3, 15, 0)), "warning", "newer than 3.13", "python3.13 -m venv"),
    (judge.python, changed(PYTHON, system="Darwin"), "error", "jobs run on Linux only", "Linux container"),
    (judge.python, changed(PYTHON, bits=32), "error", "has 32 bits", "64 bits"),
    (judge.python, changed(PYTHON, free_threaded=True), "warning", "without the GIL", "the usual build"),
    (
        judge.torch,
        changed(CPU, driver=DRIVER),
        "warning",
        "no role uses the GPUs",
        "pip install --force-reinstall torch==2.13.0 --index-url https://pypi.org/simple",
    ),
    (
        judge.torch,
        CUDA,
        "warning",
        "it runs on the CPU",
        "torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu",
    ),
    (judge.torch, changed(CUDA, cuda="13.0", driver=DRIVER), "error", "the driver is too old", "whl/cu128"),
    (judge.torch, changed(CUDA, driver=changed(DRIVER, gpus=0)), "warning", "shows no GPU", "--gpus all"),
    (judge.ray, Ray(None, "2.60.0"), "error", "Ray is not", "pip install 'ray==2.60.0'"),
    (
        judge.ray,
        changed(RAY, import_error="ImportError: x"),
        "error",
        "ImportError: x",
        "pip install --force-reinstall",
    ),
    (judge.ray, changed(RAY, version="2.9.0"), "warning", "is made for 2.60.0", "on every node: pip install"),
    (
        judge.ray,
        changed(RAY, cluster="a:6379", named="RAY_ADDRESS", unreachable="refused"),
        "warning",
        "RAY_ADDRESS names the Ray at a:6379, which cannot be reached: refused",
        "unset RAY_ADDRESS",
    ),
    (
        judge.ray,
        changed(RAY, cluster="a:6379", named="/tmp/ray/ray_current_cluster", unreachable="refused"),
        "warning",
        "/tmp/ray/ray_current_cluster names",
        "rm -f /tmp/ray/ray_current_cluster",
    ),
    (judge.shm, SharedMemory(64_000_000, 64_000_000), "warning", "0.1 GB free of 0.1 GB", "--shm-size 8g"),
    (judge.shm, changed(SHM, free=1000), "warning", "nearly full", "du -sh /dev/shm/*"),
    (judge.shm, SharedMemory(error="Permission denied"), "warning", "Permission denied", "mount -t tmpfs"),
    (judge.limits, Limits(1024), "warning", "1,024 files", "/etc/security/limits.conf"),
    (judge.limits, Limits(64, root=True), "error", "64 files", "ulimit -n 65536"),
    (judge.limits, Limits(None, 200, 100), "warning", "this user may start 100 more", "ulimit -u 4096"),
    (judge.limits, Limits(None, 200, 300), "error", "this user may start 0 more", "ulimit -u 4096"),
    (judge.limits, Limits(pids=100), "warning", "the container may start 100 more", "--pids-limit 4096"),
    (judge.limits, Limits(memlock=65536, fabric=True), "warning", "may lock 65,536 bytes", "memlock=-1"),
    (judge.abilities, Abilities({"eventfd": "no such call"}), "error", "eventfd fails: no such call", "seccomp"),
    (judge.abilities, Abilities({"pidfd": "no such call"}), "warning", "pidfd fails", "Linux 5.3"),
    (judge.network, Network("refused"), "error", "127.0.0.1 fails: refused", "ip link set lo up"),
    (judge.network, Network("", 10), "warning", "10 ports only", "sysctl -w"),
    (judge.host, Host("node-1", "unknown"), "warning", "'node-1' has no address of its own (unknown)", "/etc/hosts"),
    (judge.disk, changed(DISK, free=GB), "warning", "1.0 GB free", "ROLEMESH_RUNS="),
    (judge.disk, changed(DISK, free=1000), "error", "0.0 GB free", "ROLEMESH_RUNS="),
    (judge.disk, changed(DISK, files=10), "warning", "10 more files", "ROLEMESH_RUNS="),
    (judge.disk, Disk("/data/runs", error="Read-only file system"), "error", "Read-only file", "ROLEMESH_RUNS="),
    (judge.disk, changed(DISK, lock_error="No locks"), "warning", "in /data/runs (No locks)", "nolock"),
    (judge.tmp, Disk("/tmp", error="Permission denied"), "error", "/tmp cannot be written", "chmod 1777 /tmp"),
    (judge.tmp, Disk("/tmp", 1000), "warning", "0.0 GB free", "du -sh /tmp/*"),
    (judge.clock, changed(CLOCK, now=0.0), "error", "the clock is not set", "timedatectl set-ntp true"),
    (judge.clock, changed(CLOCK, file_system_ahead_s=-90.0), "warning", "90.0 s behind", "timedatectl"),
    (judge.clock, changed(CLOCK, wall_s=-3600.0), "warning", "by -3600.1 s", "timedatectl status"),
    (judge.plugins, Plugins(1, broken=(("it is broken", "do"),)), "error", "it is broken", "do"),
    (judge.plugins, Plugins(1, duplicate=(("two", "do"),)), "warning", "two", "do"),
    (judge.plugins, Plugins(1, shadowed=(("elsewhere", "do"),)), "warning", "elsewhere", "do"),
    (judge.installation, Installation(leftovers=(("left", "rm -r x"),)), "warning", "left", "rm -r x"),
    (judge.installation, Installation(half=(("half", "rm -r x"),)), "error", "half", "rm -r x"),
    (judge.working_dir, WorkingDir("", error="it is gone"), "error", "cannot be read: it is gone", "cd"),
    (judge.working_dir, WorkingDir("/home/a", ("random.py",)), "warning", "/home/a/random.py hides", "rename it"),
]


@pytest.mark.parametrize(("judged", "facts", "said"), FINE)
def test_a_sound_fact_is_reported_without_a_remedy(
    judged: Callable[[Any], Iterator[Finding]], facts: Any, said: str
) -> None:
    found = list(judged(facts))
    assert {(each.status, each.remedy) for each in found} == {("ok", "")}
    assert any(said in each.what for each in found), found


@pytest.mark.parametrize(("judged", "facts", "status", "said", "remedy"), WRONG)
def test_a_defect_has_a_cause_and_a_remedy(
    judged: Callable[[Any], Iterator[Finding]], facts: Any, status: str, said: str, remedy: str
) -> None:
    [found] = [each for each in judged(facts) if each.status != "ok"]
    assert found.status == status
    assert said in found.what
    assert remedy in found.remedy
