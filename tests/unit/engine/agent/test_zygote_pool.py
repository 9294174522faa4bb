"""Which roles' ranks are forked from one zygote, with real zygotes."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolemesh_durable.agent.zygote import Fork
from rolemesh_durable.agent.zygote_pool import Death, ZygotePool
from rolemesh_durable.protocol.job import Environment
from rolemesh_durable.protocol.refs import StartRef


@pytest.fixture
def zygotes(tmp_path: Path) -> Iterator[ZygotePool]:
    found = ZygotePool(tmp_path, "nobody/nothing/0", tmp_path)
    yield found
    found.close()


def test_roles_with_the_same_packages_folder_and_variables_share_a_zygote_and_no_others_do(
    zygotes: ZygotePool, tmp_path: Path
) -> None:
    there = Environment((), str(tmp_path), "job.yaml:3")
    zygotes.boot((), {}, Environment())
    zygotes.boot((), {}, there)
    zygotes.boot((), {}, Environment((), str(tmp_path), "job.yaml:9"))
    assert len(zygotes.pids()) == 2
    zygotes.boot((), {"A": "1"}, there)
    zygotes.boot((), {}, Environment(("no-such-package-of-rolemesh",), str(tmp_path)))
    assert len(zygotes.pids()) == 4


def test_ranks_of_an_environment_that_cannot_be_made_end_with_the_reason(tmp_path: Path) -> None:
    sockets: list[socket.socket] = []
    zygotes = ZygotePool(tmp_path, "nobody/nothing/0", tmp_path)
    zygotes.watch(sockets.append)
    gone = Environment((), str(tmp_path / "gone"), "job.yaml:7: roles.a.runtime_env.working_dir")
    for rank in range(2):
        zygotes.fork((), {}, gone, Fork(StartRef("a", rank, 0), b"", os.devnull, {}))
    deaths: list[Death] = []
    while not deaths:
        assert select.select(sockets, [], [], 60.0)[0]
        deaths = zygotes.read(sockets[0])
    assert [str(death.who) for death in deaths] == ["a/0/0", "a/1/0"]
    assert {death.cause for death in deaths} == {"environment"}
    place = "job.yaml:7: roles.a.runtime_env.working_dir"
    why = f"{tmp_path / 'gone'} cannot be used: No such file or directory"
    assert deaths[0].error.startswith(f"its environment could not be made: {place}: {why}")
    assert zygotes.pids() == []
