"""The pages on which ranks show their progress, from one life of a rank to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolemesh_durable.agent.status_pages import StatusPages
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_processes.reserve import Reserve


@pytest.mark.parametrize(("page", "launch", "known"), [(7, 5, 7), (5, 7, 7), (None, 7, 7), (None, 0, 0)])
def test_a_rank_goes_on_counting_calls_from_what_its_node_or_the_master_knows(
    shm: Path, page: int | None, launch: int, known: int
) -> None:
    def start(generation: int, calls: int) -> int:
        pages = StatusPages(shm, Reserve(shm))
        pages.start(RankLaunch("box", 0, 1, 0, 1, generation, calls=calls))
        ((_, position),) = pages.read()
        pages.close()
        return position.calls

    if page is not None:
        assert start(0, page) == page
    assert start(1, launch) == known
