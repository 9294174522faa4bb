"""A gateway with a thousand open conversations takes no more after an hour of turns than after its first minutes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.soak.talking import Level, slope, talked

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(4200)]

SECONDS, EVERY_S, SEVERAL = 3600.0, 30.0, 1000
WARM_UP_S, SPAN_S = 600.0, 600.0
MAY_GROW = 0.05
CPU_MS = 2.0
"""CPU time of a turn: a gateway that has one core to itself then answers 500 a second."""


def test_a_gateway_takes_no_more_after_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    levels = talked(SECONDS, SEVERAL, EVERY_S)
    assert all(later.turns > earlier.turns for earlier, later in pairwise(levels)), "no turn in a whole interval"
    warm = [each for each in levels if each.at >= WARM_UP_S]
    first = [each for each in warm if each.at < WARM_UP_S + SPAN_S]
    last = [each for each in warm if each.at >= SECONDS - SPAN_S]
    with capsys.disabled():
        growth = f"{slope(warm) / 1e6:+.2f} MB, {slope(warm, 'objects'):+,.0f} objects an hour"
        print(f"\n{warm[-1].turns:,} turns; {growth}")
    grown = {name: (_most(first, name), _most(last, name)) for name in ("resident", "descriptors", "objects")}
    taken = [(one[-1].cpu - one[0].cpu) / (one[-1].turns - one[0].turns) * 1000 for one in (first, last)]
    assert max(taken) <= CPU_MS, taken
    assert not {name: both for name, both in grown.items() if both[1] > both[0] * (1 + MAY_GROW)}, grown


def _most(levels: list[Level], name: str) -> float:
    return max(float(getattr(each, name)) for each in levels)
