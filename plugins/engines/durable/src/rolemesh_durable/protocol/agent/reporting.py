"""The times of an agent's reports: at once after an event, soon after progress, and every second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent.rank import AgentRank
from rolemesh_durable.protocol.metrics.merge import MetricsMerger

__all__ = ["Identity", "Reporting"]

REPORT_S = 1.0
PROMPT_S = 0.1
"""Minimum seconds between reports of mere progress.

Without any, the agent reports every `REPORT_S`; events go at once.
"""
PER_RANK_S = 200e-6
"""Minimum seconds between two reports, for each rank in them: many ranks come and go together."""
METRICS_AGAIN_S = 2.0
"""Seconds, up to twice as many, after which the agent repeats metrics that the master has not confirmed."""
LAST = 1 << 62
"""A step after all others."""


class Identity(msgspec.Struct, frozen=True):
    """The sender of reports: an incarnation of an agent, and its place."""

    agent: str
    node: str
    incarnation: int = 0
    host: str = ""
    pid: int = 0


class Reporting:
    """Decides when to report.

    `urgent`: an event has happened. `metrics` are the ranks' lines that are not known to be durable.
    """

    def __init__(self, who: Identity) -> None:
        self.urgent, self._soon = True, False
        self.metrics = MetricsMerger()
        self._who, self._seq = msgspec.structs.asdict(who), 0
        self._metrics_sent = self._sent_at = float("-inf")
        self._overdue = LAST
        self._sent: tuple[object, ...] = ()

    def take(self, rank: AgentRank, message: m.RankMetrics | m.RankSays) -> None:
        """Take news of a rank that may wait for `PROMPT_S`."""
        if isinstance(message, m.RankMetrics):
            self.metrics.add(message.rank, message.lines)
        else:
            rank.says[message.message.name] = message.message
            self._soon = True

    def new_master(self) -> None:
        """Begin with a new master, which knows nothing yet."""
        self.urgent, self._metrics_sent, self._overdue = True, float("-inf"), LAST

    def news_due(self, ranks: int) -> float:
        """Return when the next event must be reported, for this number of ranks; infinity if there is none."""
        return self._sent_at + PER_RANK_S * ranks if self.urgent else float("inf")

    def due(self, ranks: Mapping[RankRef, AgentRank], now: float) -> bool:
        """Return True if it is time for a report. The caller sends it then."""
        if now < min(self._sent_at + max(PROMPT_S, PER_RANK_S * len(ranks)), self.news_due(len(ranks))):
            return False
        samples = (rank.sample for rank in ranks.values())
        progress = tuple((sample.finished, sample.durable) for sample in samples if sample is not None)
        news = self.urgent or self._soon or self.metrics.pending or progress != self._sent
        if not news and now < self._sent_at + REPORT_S:
            return False
        self._sent_at, self._sent, self.urgent, self._soon = now, progress, False, False
        return True

    def lines(self, now: float) -> tuple[m.Metrics, ...]:
        """Return the lines for a report: the new ones, and sometimes all."""
        new = self.metrics.take()
        if now < self._metrics_sent + METRICS_AGAIN_S:
            return new
        again = self.metrics.durable < self._overdue  # the lines that were sent by the last such time
        self._metrics_sent, self._overdue = now, self.metrics.last
        return self.metrics.lines() if again else new

    def build(self, **told: Any) -> m.Report:
        """Return the next report."""
        self._seq += 1
        return m.Report(seq=self._seq, **self._who, **told)
