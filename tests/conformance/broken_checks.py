"""Checks that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from rolemesh_durable.checks import Check, CheckedNode, CheckOptions

__all__ = ["BROKEN", "Sound"]


class Sound(Check):
    """Writes a file and removes it."""

    def measure(self, node: CheckedNode) -> dict[str, float]:
        with tempfile.TemporaryFile(dir=node.run_dir) as file:
            file.write(b"here")
        return {"files_per_s": 1.0}


class Free(BaseModel, extra="forbid"):
    """Has no limits."""

    timeout_s: float = Field(default=60.0, description="As of every check.")
    at_least: dict[str, float] = Field(default={}, description="As of every check.")


class WithoutLimits(Sound):
    """Does not say which nodes fail."""

    Options = Free


class Nan(Sound):
    """Has not measured anything."""

    def measure(self, node: CheckedNode) -> dict[str, float]:
        return {"gb_per_s": float("nan")}


class Counting(Sound):
    """Names its number by the time."""

    def measure(self, node: CheckedNode) -> dict[str, float]:
        return {f"at {time.time_ns()}": 1.0}


class Elsewhere(CheckOptions):
    """A limit for a number of another check."""

    at_least: dict[str, float] = Field(default={"gb_per_s": 1.0}, description="As of every check.")


class Mistaken(Sound):
    """Has a limit that is held against nothing."""

    Options = Elsewhere


class Alone(Sound):
    """Wants the folder for itself."""

    def measure(self, node: CheckedNode) -> dict[str, float]:
        lock, refused = Path(node.run_dir, "lock"), Path(node.run_dir, "refused")
        try:
            lock.touch(exist_ok=False)
        except FileExistsError:
            refused.touch()
            raise
        deadline = time.monotonic() + 60
        while len(node.together) > 1 and not refused.exists() and time.monotonic() < deadline:
            time.sleep(0.01)  # until the other node has come, however busy the machine is
        refused.unlink(missing_ok=True)
        lock.unlink()
        return {"files_per_s": 1.0}


class Littering(Sound):
    """Leaves its file."""

    def measure(self, node: CheckedNode) -> dict[str, float]:
        Path(node.shm_dir, "probe").touch()
        return {"files_per_s": 1.0}


class Straying(Sound):
    """Writes somewhere else."""

    def measure(self, node: CheckedNode) -> dict[str, float]:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"here")
        return {"files_per_s": 1.0}


class Leaving(Sound):
    """Does not wait for what it has started."""

    def measure(self, node: CheckedNode) -> dict[str, float]:
        subprocess.Popen(["sleep", "0.5"])
        return {"files_per_s": 1.0}


class Wordy(Sound):
    """Tells instead of measuring."""

    def measure(self, node: CheckedNode) -> Any:
        return dict(itertools.zip_longest(("disk",), ("fine",)))


NUMBERS = "test_it_measures_finite_numbers_by_name"

BROKEN: dict[type[Check], set[str]] = {
    WithoutLimits: {"test_its_options_are_a_checks"},
    Nan: {NUMBERS},
    Wordy: {NUMBERS},
    Counting: {"test_its_numbers_have_the_same_names_each_time"},
    Mistaken: {"test_its_limits_are_for_numbers_that_it_measures"},
    Alone: {"test_two_nodes_are_measured_together"},
    Littering: {"test_it_leaves_no_file"},
    Straying: {"test_it_writes_in_the_nodes_folders_only"},
    Leaving: {"test_it_leaves_nothing_running"},
}
