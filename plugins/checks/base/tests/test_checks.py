"""Each check on this machine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import HANG_S

from rolemesh_checks import DiskCheck, MatmulCheck, MemoryCheck, NetworkCheck, SharedMemoryCheck
from rolemesh_durable.checks import Check, CheckedNode


def at(folder: Path, node: str = "a", *others: str) -> CheckedNode:
    return CheckedNode(node, "127.0.0.1", str(folder), str(folder), (node, *others) if others else (node,), "attempt")


def made(cls: type[Check], **options: Any) -> Check:
    return cls(cls.Options(**options))


def test_each_measures_what_it_says(tmp_path: Path) -> None:
    here = at(tmp_path)
    assert made(MemoryCheck, mb=1).measure(here)["gb_per_s"] > 0
    assert made(MatmulCheck, size=64, device="cpu").measure(here)["gflop_per_s"] > 0
    found = made(DiskCheck, mb=1).measure(here)
    assert found["free_gb"] > 0
    assert found["write_mb_per_s"] > 0
    assert made(SharedMemoryCheck).measure(here)["free_gb"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match="torch sees no GPU"):
        made(MatmulCheck, device="cuda").measure(at(tmp_path))


@pytest.mark.parametrize("count", [2, 3])
def test_nodes_measure_the_network_between_them(tmp_path: Path, count: int) -> None:
    names = tuple(f"n{i}" for i in range(count))
    found: dict[str, float] = {}

    def measure(name: str) -> None:
        here = CheckedNode(name, "127.0.0.1", str(tmp_path), str(tmp_path), names, "attempt")
        found[name] = made(NetworkCheck, mb=4, timeout_s=30).measure(here)["gb_per_s"]

    threads = [threading.Thread(target=measure, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert set(found) == set(names)
    assert all(rate > 0 for rate in found.values())
    assert list(tmp_path.iterdir()) == []


def test_alone_there_is_nothing_to_measure_and_who_does_not_come_is_named(tmp_path: Path) -> None:
    assert made(NetworkCheck).measure(at(tmp_path)) == {}
    with pytest.raises(TimeoutError, match="node b has not come"):
        made(NetworkCheck, timeout_s=0.3).measure(at(tmp_path, "a", "b"))
    assert list(tmp_path.iterdir()) == []
