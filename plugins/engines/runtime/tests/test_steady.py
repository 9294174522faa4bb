"""Durations that nobody changes by setting the clock."""

from __future__ import annotations

import time

import pytest

from rolemesh_runtime.steady import steady_time


def test_a_step_of_the_clock_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(steady_time() - time.time()) < 60.0
    before, clock = steady_time(), time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 3600.0)
    assert 0.0 <= steady_time() - before < 60.0
