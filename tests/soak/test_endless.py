"""A job without an end that is killed and resized again and again uses each record once, and takes no more for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak.endless import Endless
from tests.soak.footprint import changes, table

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(1800)]

SECONDS, WARM_UP_S, SPAN_S = 600.0, 120.0, 120.0
MAY_GROW = 0.1


def test_a_job_without_an_end_is_exact_and_takes_no_more_after_ten_minutes_of_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Endless(tmp_path, SECONDS, kill_s=10.0, resize_s=45.0).run(1.0)
    assert outcome.exact, (outcome.code, outcome.found, outcome.due)
    assert outcome.kills > SECONDS / 20
    first = [each for each in outcome.samples if WARM_UP_S <= each.at <= WARM_UP_S + SPAN_S]
    last = [each for each in outcome.samples if each.at >= SECONDS - SPAN_S]
    found = changes(first, last)
    with capsys.disabled():
        print(f"\n{outcome.kills} kills, {outcome.resizes} resizes in {SECONDS:.0f} s\n{table(found)}")
    grown = [change for change in found if change.what != "master, per step" and change.grown(MAY_GROW)]
    assert not grown, table(grown)
