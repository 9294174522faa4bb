"""The phases that a rank shows while it loads for its turn and makes room."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rolemesh import Workload
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.turns.admission import TurnAdmission
from rolemesh_durable.extensions.turns.order import Row
from rolemesh_durable.extensions.turns.page import TurnPage
from rolemesh_durable.extensions.turns.phases import LOADING
from rolemesh_durable.protocol.rank.page import COMPUTING, IDLE, PHASE, PHASES
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_durable.rank.waits import ProcessWaits

ACTOR, CRITIC = RankRef("actor", 0), RankRef("critic", 0)


@pytest.mark.parametrize("before", [IDLE, COMPUTING])
def test_a_rank_that_loads_or_makes_room_says_so_and_then_what_it_said_before(tmp_path: Path, before: int) -> None:
    status = StatusPage.create(tmp_path / "status")
    (tmp_path / "turns").write_bytes(bytes(4096))
    page = TurnPage(str(tmp_path / "turns"), (ACTOR, CRITIC))
    shown: list[tuple[str, str]] = []
    spans: list[str] = []

    class Model(Workload):
        def onload(self) -> None:
            shown.append(("onload", PHASES[status.fields[PHASE]]))

        def offload(self) -> None:
            shown.append(("offload", PHASES[status.fields[PHASE]]))

    meter = SimpleNamespace(waiting=0, span=lambda phase, *_: spans.append(PHASES[phase]))
    admission = TurnAdmission(ACTOR, ProcessWaits(cast("Any", None), status, cast("Any", meter)), page, None)
    admission.set_up(Model())
    status.fields[PHASE] = before
    for turn in range(2):
        page.write(CRITIC, Row(2 * turn + 1))
        admission.next(2 * turn + 2)  # the critic's turn is first, so the actor makes room
        page.write(CRITIC, Row(2 * turn + 3))
        admission.take()
        assert status.fields[PHASE] == before
    assert shown == [("offload", "loading"), ("onload", "loading")] * 2
    assert spans == ["loading"] * 4
    assert PHASES[LOADING] == "loading"
    assert meter.waiting > 0
