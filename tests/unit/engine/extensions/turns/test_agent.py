"""The page of a slot, as the agent and the processes of its ranks see it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.engine.extensions.agent_process import FakeAgent

from rolemesh_durable.extensions.turns.agent import TurnPages
from rolemesh_durable.extensions.turns.order import ABSENT, STARTING, Row
from rolemesh_durable.extensions.turns.page import PAGE, TurnPage
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.refs import StartRef

MEMBERS = (("actor", 0), ("critic", 0))
WRITES = """
import sys
from rolemesh_durable.extensions.turns.order import Row
from rolemesh_durable.extensions.turns.page import TurnPage
TurnPage(sys.argv[1], (("actor", 0), ("critic", 0))).write(("critic", 0), Row(7, True))
"""


def launch(role: str, generation: int = 0, turns: tuple[tuple[str, int], ...] = ()) -> RankLaunch:
    return RankLaunch(role, 0, 1, 0, 1, generation, turns=turns)


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[TurnPages]:
    made = TurnPages(FakeAgent(tmp_path).process)
    yield made
    made.close()


def test_ranks_in_other_processes_share_one_page_that_no_folder_holds(pages: TurnPages) -> None:
    path = pages.starting(launch("actor", turns=MEMBERS))[PAGE]
    assert pages.starting(launch("critic", turns=MEMBERS)) == {PAGE: path}
    mine = TurnPage(path, MEMBERS)
    subprocess.run([sys.executable, "-c", WRITES, path], check=True)
    assert mine.read() == [Row(STARTING), Row(7, True)]
    mine.close()


def test_a_rank_that_is_gone_is_waited_for_only_if_it_comes_again(pages: TurnPages) -> None:
    page = TurnPage(pages.starting(launch("actor", turns=MEMBERS))[PAGE], MEMBERS)
    pages.gone(StartRef("actor", 0, 0))
    assert page.read()[0] == Row(ABSENT)
    pages.starting(launch("actor", generation=1, turns=MEMBERS))
    pages.gone(StartRef("actor", 0, 0))
    assert page.read()[0] == Row(STARTING)
    page.close()


def test_a_rank_without_turns_has_no_page(pages: TurnPages) -> None:
    assert pages.starting(launch("actor")) == {}
