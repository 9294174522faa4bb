"""The load of a node in its file: read as psutil reads it, within a container's limits, and bounded in size."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rolemesh_facts.node_load import engine_load, engine_names, fewer, loads
from rolemesh_recorder import node_counters
from rolemesh_recorder.extension import Recorder
from rolemesh_recorder.node_counters import GPUs, Meter, cores_used, memory_used, network_bytes
from rolemesh_recorder.node_record import NodeFile
from rolemesh_recorder.options import RecorderOptions
from rolemesh_recorder.usage import GPU, KnownUsage, Usage, node_file, read_usage, recorded_nodes
from rolemesh_testing import ExtensionConformance

STAT = "cpu  1000 20 300 40000 500 6 70 8 90 1\ncpu0 1000 20 300 40000 500 6 70 8 90 1\nintr 5 0\n"
MEMINFO = "\n".join(
    f"{name}: {value} kB"
    for name, value in (("MemTotal", 16_000_000), ("MemFree", 1_000_000), ("MemAvailable", 9_000_000),
                        ("Buffers", 100), ("Cached", 8_000_000), ("Slab", 1), ("Active", 1), ("Inactive", 1),
                        ("Shmem", 1))
)  # fmt: skip
NET = """Inter-|   Receive                           |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 777 1 0 0 0 0 0 0 777 1 0 0 0 0 0 0
  eth0: 5000 9 0 0 0 0 0 0 600 8 0 0 0 0 0 0
 bond0: 5000 9 0 0 0 0 0 0 600 8 0 0 0 0 0 0
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's counters as files, for the recorder and for psutil."""
    for path, content in {
        "proc/stat": STAT, "proc/meminfo": MEMINFO, "proc/net/dev": NET, "proc/self/cgroup": "0::/\n",
        "net/eth0/device": "",
    }.items():  # fmt: skip
        write(tmp_path / path, content)
    for name, folder in (("PROC", "proc"), ("GROUPS", "cgroup"), ("INTERFACES", "net")):
        monkeypatch.setattr(node_counters, name, tmp_path / folder)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    return tmp_path


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_a_machine_is_read_as_psutil_reads_it(node: Path) -> None:
    times, memory, network = psutil.cpu_times(), psutil.virtual_memory(), psutil.net_io_counters(pernic=True)["eth0"]
    guests = times.guest + times.guest_nice  # are in the times of the user already
    assert cores_used(None) == pytest.approx(sum(times) - guests - times.idle - times.iowait)
    assert memory_used(None) == (memory.total - memory.available, memory.total)
    assert network_bytes() == (network.bytes_recv, network.bytes_sent)
    (node / "net" / "eth0" / "device").unlink()
    assert network_bytes() == (2 * network.bytes_recv, 2 * network.bytes_sent)


GROUPS = {
    2: {
        "": "0::/jobs/one",
        "jobs/cpu.max": "150000 100000", "jobs/cpu.stat": "usage_usec 7000000\nuser_usec 1\n",
        "jobs/one/cpu.max": "max 100000", "jobs/one/memory.max": "4000000000",
        "jobs/one/memory.current": "3000000000", "jobs/one/memory.stat": "anon 9\ninactive_file 1000000000\n",
        "jobs/memory.max": "8000000000",
    },
    1: {
        "": "4:cpu,cpuacct:/jobs/one\n3:memory:/jobs/one",
        "cpu/jobs/cpu.cfs_quota_us": "150000", "cpu/jobs/cpu.cfs_period_us": "100000",
        "cpuacct/jobs/cpuacct.usage": "7000000000",
        "cpu/jobs/one/cpu.cfs_quota_us": "-1", "cpu/jobs/one/cpu.cfs_period_us": "100000",
        "memory/jobs/one/memory.limit_in_bytes": "4000000000",
        "memory/jobs/one/memory.usage_in_bytes": "3000000000",
        "memory/jobs/one/memory.stat": "cache 9\ntotal_inactive_file 1000000000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712",
    },
}  # fmt: skip


@pytest.mark.parametrize("version", GROUPS)
def test_a_container_has_the_counters_and_limits_of_its_control_groups(
    node: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    for path, content in GROUPS[version].items():
        write(node / "cgroup" / path if path else node / "proc" / "self" / "cgroup", content)
    meter = Meter()
    grown = node / "cgroup" / ("jobs/cpu.stat" if version == 2 else "cpuacct/jobs/cpuacct.usage")
    write(grown, grown.read_text().replace("7000000", "9000000"))
    found = meter.next()
    assert found.cores * found.d == pytest.approx(2_000_000, rel=0.01)  # µs of work
    assert (found.cores_total, found.memory, found.memory_total) == (1.5, 2_000_000_000, 4_000_000_000)


@pytest.mark.parametrize(
    ("own", "above", "used", "wanted"),
    [
        ({"max": "max", "high": "max"}, {"max": "max"}, 3, (None, 16.384)),
        ({"max": "8", "high": "4"}, {"max": "max"}, 3, (2, 4)),
        ({"max": "max", "high": "4"}, {"max": "6", "high": "max"}, 3, (2, 4)),
        ({"max": "max"}, {"max": "6"}, 3, (2, 6)),
        ({"max": "2"}, {"max": "6"}, 3, (2, 2)),
        ({"high": "1", "max": "max"}, {"max": "6"}, 3, (2, 1)),
        ({"max": "99"}, {"max": "max"}, 3, (None, 16.384)),
    ],
    ids=[
        "no limit",
        "high",
        "high below a limit above",
        "a limit above",
        "as much as is used",
        "less",
        "more than all",
    ],
)
def test_a_node_has_the_least_limit_of_its_groups_of_version_2_and_the_memory_of_that_group(
    node: Path, own: dict[str, str], above: dict[str, str], used: int, wanted: tuple[float | None, float]
) -> None:
    """Numbers are 10^9 bytes. 10^9 of what is used are files that the kernel would drop."""
    write(node / "proc/self/cgroup", "0::/jobs/one\n")
    for group, limits in (("jobs/one", own), ("jobs", above)):
        for name, limit in limits.items():
            write(node / f"cgroup/{group}/memory.{name}", f"{limit}{'0' * 9 if limit != 'max' else ''}\n")
        write(node / f"cgroup/{group}/memory.current", f"{used * 10**9}\n")
        write(node / f"cgroup/{group}/memory.stat", "anon 9\ninactive_file 1000000000\n")
    found = Meter().next()
    machine = memory_used(None)
    assert found.memory == (machine[0] if wanted[0] is None else wanted[0] * 10**9)
    assert found.memory_total == (machine[1] if wanted[0] is None else wanted[1] * 10**9)


def test_gpus_are_those_of_nvml_and_one_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def handle(index: int) -> int:
        if index == 1:
            raise NVMLError
        return index

    def rates(device: int) -> SimpleNamespace:
        if device == 2:  # as a MIG device
            raise NVMLError
        return SimpleNamespace(gpu=70, memory=1)

    nvml = SimpleNamespace(
        NVMLError=NVMLError, NVML_TEMPERATURE_GPU=0, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetName=lambda device: b"NVIDIA H200",
        nvmlDeviceGetUtilizationRates=rates, nvmlDeviceGetTemperature=lambda device, sensor: 55,
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=10, total=20),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert GPUs().look() == (GPU(0, 0.7, 10, 20, 55.0, "NVIDIA H200"), GPU(2, None, 10, 20, 55.0, "NVIDIA H200"))
    monkeypatch.setattr(nvml, "nvmlInit", lambda: handle(1))
    assert GPUs().look() == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # is not installed
    assert GPUs().look() == ()


def test_a_nodes_file_stays_small_and_its_sums_exact(tmp_path: Path) -> None:
    path = node_file(tmp_path, "10.0.0.1/é")
    file, known = NodeFile(path, 20_000), KnownUsage(tmp_path)
    for at in range(3000):
        gpu = GPU(0, at % 2, at, 5000, 40.0)
        file.append(Usage(2000 * at, 2000, at % 2, 2.0, at, 5000, 7, 3, (gpu,)))
        if at % 37 == 0:
            assert known.lines("10.0.0.1/é") == list(read_usage(tmp_path, "10.0.0.1/é"))
        assert path.stat().st_size <= 20_000
    assert recorded_nodes(tmp_path) == ["10.0.0.1/é"]
    found = list(read_usage(tmp_path, "10.0.0.1/é"))
    assert [line.t + line.d for line in found[:-1]] == [line.t for line in found[1:]]
    assert (found[0].t, sum(line.d for line in found)) == (0, 6_000_000)
    assert (sum(line.received for line in found), sum(line.sent for line in found)) == (21_000, 9_000)
    assert sum(line.cores * line.d for line in found) == pytest.approx(3_000_000, rel=1e-3)
    assert found[-1] == Usage(5_998_000, 2000, 1.0, 2.0, 2999, 5000, 7, 3, (GPU(0, 1.0, 2999, 5000, 40.0),))
    assert known.lines("10.0.0.1/é") == found
    with path.open("ab") as damaged:
        damaged.write(b'{"t":1}\n{"t":')
    assert list(read_usage(tmp_path, "10.0.0.1/é")) == found


def test_loads_of_a_node_are_its_lines_and_neighbours_join(tmp_path: Path) -> None:
    gpu = GPU(1, 0.5, 10, 40, 61.0, "H200")
    lines = [Usage(2000 * at, 2000, at, 8.0, at, 50, 7, 3, (gpu,)) for at in range(8)]
    whole = {load.what: load for load in loads(lines)}
    assert list(whole) == ["cores", "memory", "GPU 1", "GPU 1 memory", "network"]
    assert whole["cores"].parts == [(2000 * at, 2000, at) for at in range(8)]
    assert (whole["GPU 1"].said, whole["GPU 1 memory"].said) == ("50% busy, 61 °C, H200", "10 bytes of 40 bytes")
    assert (whole["network"].full, whole["network"].unit) == (5000.0, "B/s")
    few = {load.what: load for load in loads(fewer(lines, 4))}
    assert few["cores"].parts == [(4000 * at, 4000, 2 * at + 0.5) for at in range(4)]
    assert [most for *_, most in few["memory"].parts] == [1, 3, 5, 7]
    assert loads([]) == []
    [alone, *_] = loads(lines[4:5])
    assert alone.shares == ([0, 2], [0.5, 0.5]), "a line, also of one part"


def test_loads_of_engines_last_from_one_line_of_metrics_to_the_next() -> None:
    names = ["loss", "kv_cache_usage", "decode_requests_running", "requests_running", "not_preemptionss"]
    assert engine_names(names) == ["decode_requests_running", "requests_running", "kv_cache_usage"]
    times = {0: 10, 2: 30, 3: 40, 4: 60}
    points = [0, 2, 4], [1.0, 3.0, 5.0]
    found = engine_load("requests_running", points, times, 0, 99, 8)
    assert found.parts == [(0, 10, 1.0), (10, 20, 3.0), (40, 20, 5.0)]
    assert (found.unit, found.full) == ("requests", 5.0)
    assert engine_load("requests_running", points, times, 15, 35, 8).parts == [(15, 15, 3.0)]
    assert engine_load("requests_running", points, times, 0, 99, 2).parts == [(0, 30, 7 / 3), (40, 20, 5.0)]
    assert engine_load("kv_cache_usage", points, times, 0, 99, 8).full == 1.0


def test_an_agent_records_its_node_from_its_start_to_its_end(tmp_path: Path) -> None:
    """Also within one period."""
    ExtensionConformance().test_its_part_in_an_agent_lives_until_the_job_is_over(Recorder(RecorderOptions()), tmp_path)
    (node,) = recorded_nodes(tmp_path)
    (line,) = read_usage(tmp_path, node)
    assert line.cores_total >= 1
