"""What the master tells an agent now: the difference between what it wants and what the agent last reported.

Commands do nothing where they have been carried out already, so each is repeated until a report shows that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master.events import ToAgent
from rolemesh_durable.protocol.master.records import AgentRecord, RankKey, RankRecord

__all__ = ["KEEPALIVE_S", "RESEND_S", "Commands", "halt_of", "launch_of"]

RESEND_S = 0.5
"""After this a command that no report confirms is sent again."""
KEEPALIVE_S = 1.0
"""An `Advance` is sent at least this often: agents live as long as they hear their master."""


class Commands:
    """Remembers what was sent to each agent, so that a command goes out when it changes, and again when it is due."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, int, type], tuple[object, float]] = {}

    def send(
        self, agent: AgentRecord, message: m.MasterToAgent, now: float, again_s: float = RESEND_S
    ) -> list[ToAgent]:
        """`message`, unless this incarnation was told the same less than `again_s` ago."""
        key = (agent.place.agent, agent.incarnation, type(message))
        before = self._sent.get(key)
        if before is not None and before[0] == message and now < before[1] + again_s:
            return []
        self._sent[key] = (message, now)
        return [ToAgent(agent.place.agent, agent.incarnation, message)]


def launch_of(agent: AgentRecord, ranks: Iterable[RankRecord]) -> tuple[m.RankLaunch, ...]:
    """The ranks that are to run on `agent` and that it has not reported in their present generation."""
    starting = [rank for rank in ranks if rank.state == "starting"]
    if not starting:
        return ()
    reported = {(r.role, r.rank): r.generation for r in agent.report.ranks} if agent.report else {}
    return tuple(
        rank.launch
        for rank in starting
        if reported.get((rank.launch.role, rank.launch.rank), -1) < rank.launch.generation
    )


def halt_of(
    agent: AgentRecord, here: Iterable[RankRecord], ranks: Mapping[RankKey, RankRecord]
) -> tuple[m.RankId, ...]:
    """The ranks to be killed on `agent`: those of its own (`here`) that are being halted, and processes that belong
    elsewhere by now.
    """
    wanted: list[m.RankId] = []
    reports = agent.report.ranks if agent.report else ()
    if halting := [rank.launch for rank in here if rank.state == "halting"]:
        reported = {(seen.role, seen.rank): seen for seen in reports}
        for launch in halting:
            known = reported.get((launch.role, launch.rank))
            if known is None or known.state != "gone" or known.generation < launch.generation:
                wanted.append((launch.role, launch.rank, launch.generation))
    for seen in reports:
        record = ranks.get((seen.role, seen.rank))
        if record is not None and record.agent != agent.place.agent and seen.state != "gone":
            wanted.append((seen.role, seen.rank, seen.generation))
    return tuple(wanted)
