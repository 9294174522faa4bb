"""A rank without a process, for one extension: it calls the hooks in the order of a real rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolemesh.api.workload import RankContext, Workload
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_durable.api.extensions import Extension, ExtensionMessage, JobShape, Rank, RankExtension, Receive, Send

__all__ = ["LoneRank", "live"]

STEPS = 3
FLOW = LogicalGraph("lone", (OpCall(0, "worker", "work", "worker.work", None),), ())


class Work(Workload):
    """One operator without inputs."""

    def work(self) -> None:
        """Do nothing."""


class LoneRank(Rank):
    """The only rank of a job. It keeps the extension's records and messages."""

    def __init__(self) -> None:
        ctx: RankContext = RankContext(role="worker", steps=STEPS)
        values = {"ctx": ctx, "workload": Work(), "recorded": [], "channels_of": set(), "told": []}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    recorded: list[dict[str, Any]]
    channels_of: set[str]
    told: list[ExtensionMessage]

    @property
    def job(self) -> JobShape:
        """A flow with one operator."""
        return JobShape(FLOW, {"worker": 1}, STEPS)

    def record(self, values: Mapping[str, Any]) -> None:
        """Keep the values."""
        self.recorded.append(dict(values))

    def open_channel(self, name: str, receive: Receive) -> Send:
        """Open a channel that drops its messages."""
        self.channels_of.add(name)
        return lambda role, rank, body: None

    def tell_master(self, message: ExtensionMessage) -> None:
        """Keep the message, which no master takes. Raises as a real rank does."""
        message.sealed()
        self.told.append(message)


def live(extension: Extension, rank: LoneRank) -> object:
    """Call the hooks of one life, from the set-up to the end; return what `in_rank` returned."""
    part: object = extension.in_rank(rank)
    if not isinstance(part, RankExtension):
        return part
    (op,) = FLOW.ops
    method = part.wrap(op, rank.workload.work)  # type: ignore[attr-defined]
    for message in part.messages:
        message.name()
    part.opened(-1)
    for step in range(STEPS):
        rank.ctx.step = step
        part.before_step(step)
        part.idle()
        part.before_inputs(op, step)
        part.before_call(op, step)
        method()
        part.step_done(step, step == STEPS - 1)
        part.before_snapshot()
    part.steps_end(STEPS - 1)
    part.ended()
    part.close()
    part.close()
    return part
