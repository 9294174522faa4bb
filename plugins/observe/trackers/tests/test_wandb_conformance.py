"""The observer passes the conformance kit, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolemesh_testing import ObserverConformance, override
from rolemesh_testing.observers.lives import whole_life

pytestmark = pytest.mark.soak


class TestConformance(ObserverConformance):
    plugin = "wandb"
    options = {"mode": "offline", "interval_s": 0}
    bad_options = ({"mode": "disabled"}, {"timeout_s": 0})
    examples = 2
    simplify = False

    @override("the client names folders by time and by a random id; the replacement counts the runs")
    def test_one_instance_watches_twice(self, watcher: Any, run_dir: Path) -> None:
        for name in ("first", "second"):
            (run_dir / name).mkdir()
            watcher.tell(whole_life(str(run_dir / name)))
        assert not watcher.fatal + watcher.raised
        assert [len(runs(run_dir / name)) for name in ("first", "second")] == [1, 1]

    @override("as test_one_instance_watches_twice")
    def test_two_jobs_in_one_process_do_not_mix(self, watcher: Any, another: Any, run_dir: Path) -> None:
        for name in ("first", "second"):
            (run_dir / name).mkdir()
        lives = [whole_life(str(run_dir / name)) for name in ("first", "second")]
        for one, other in zip(*lives, strict=True):
            watcher.tell([one])
            another.tell([other])
        assert not watcher.fatal + watcher.raised + another.fatal + another.raised
        assert [len(runs(run_dir / name)) for name in ("first", "second")] == [1, 1]


def runs(folder: Path) -> list[Path]:
    return list(folder.glob("wandb/offline-run-*/run-*.wandb"))
