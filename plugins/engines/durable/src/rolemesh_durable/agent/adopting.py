"""An agent adopts the ranks of its previous incarnation, which keep running."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from rolemesh_dataplane.transports import Site
from rolemesh_durable.agent.memory import NodeMemory
from rolemesh_durable.agent.rank_channels import RankChannels
from rolemesh_durable.agent.status_pages import StatusPages
from rolemesh_durable.agent.zygote import Row
from rolemesh_durable.agent.zygote_pool import Death, death_of
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.starts import RankStart
from rolemesh_durable.rank.said import Said

__all__ = ["adopt"]

LOG = logging.getLogger(__name__)


def adopt(
    rows: Iterable[Row],
    status_pages: StatusPages,
    memory: NodeMemory,
    channels: RankChannels,
    ended: Callable[[Death], e.RankExited],
) -> tuple[tuple[e.Found, ...], list[tuple[m.RankLaunch, int]]]:
    """Take over the processes that the zygotes report in `rows`. Return them, and those that live with their pids.

    `ended` gives the meaning of a death.
    A process that cannot be taken over is killed; the master then restarts its rank.
    """
    found: list[e.Found] = []
    living: list[tuple[m.RankLaunch, int]] = []
    for row in rows:
        start = msgspec.msgpack.decode(row.start, type=RankStart)
        launch = start.launch
        role, rank, generation = row.who
        page = status_pages.left(launch)
        granted = page.granted if page is not None else -1
        said = Said(start.socket_dir, role, rank, generation).read()
        if row.status is not None:
            found.append(e.Found(launch, said, ended(death_of(row.who, row.status)), granted))
            continue
        try:
            status_pages.adopt(launch)
            site = Site(role, rank, start.node, generation, start.host, start.socket_dir, start.shm_dir)
            channels.connect(launch.ref, f"ipc://{site.ipc_path('inbox')}")
        except OSError as error:
            LOG.warning("%s cannot be adopted: %s", row.who, error)
            with suppress(ProcessLookupError):
                os.kill(row.pid, signal.SIGKILL)
            continue
        memory.adopted(role, rank, generation)
        living.append((launch, row.pid))
        found.append(e.Found(launch, said, granted=granted))
    if found:
        LOG.warning("adopted %d ranks; %d had ended", len(living), len(found) - len(living))
    return tuple(found), living
