"""The places of simulated snapshots and logs: a node's memory, which outlives processes, and the disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from tests.simulation.model import State

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import LogicalGraph
from rolemesh_checkpoint.persisting import outlasting

__all__ = ["CallLog", "Decision", "Disk", "Entry", "NodeMemory", "Snap"]


class Entry(NamedTuple):
    """A record of a send log: a chunk of what was made at `step`, or a decision if it has a `scope`.

    `item` is None for the mark that no chunk follows.
    """

    edge: int
    step: int
    chunk: int
    last: bool
    consumers: tuple[int, ...]
    item: Any
    hold: int
    scope: str = ""

    @property
    def body(self) -> Any:
        """The content of a decision."""
        return self.item


class Decision(NamedTuple):
    """A record of a send log: a decision about `scope` at `step`."""

    scope: str
    step: int
    hold: int
    body: bytes


class CallLog:
    """The decisions of a rank about its calls."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.heard: dict[Any, tuple[bytes, Any]] = {}
        """The witness's: the outcomes that the rank's operators have received, by place."""

    def trim(self, committed: int) -> None:
        """Drop the decisions that nobody needs any more."""
        self.decisions = [each for each in self.decisions if each.step + each.hold > committed]


class Snap:
    """A snapshot in memory: `pinned` ones wait for being persisted."""

    __slots__ = ("pinned", "state")

    def __init__(self, state: State | None, pinned: bool = False) -> None:
        self.state, self.pinned = state, pinned


Lines: TypeAlias = dict[tuple[int, bool], bytes]
"""A rank's encoded lines of metrics: by last step, and whether the line goes on after it."""
Part: TypeAlias = tuple[State | None, tuple[Entry, ...], bytes | None]
"""A rank's part of a checkpoint: state, sent values, and the line of metrics that it had begun."""
Image: TypeAlias = tuple[State | None, list[Entry], Lines]
"""All that a rank needs to go on: its state, what it has sent up to then, and its lines of metrics."""


class NodeMemory:
    """One agent's folder in its node's shared memory. It outlives the agent, but not the node."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.snaps: dict[RankRef, dict[int, Snap]] = {}
        self.logs: dict[RankRef, list[Entry]] = {}
        self.lines: dict[RankRef, Lines] = {}
        self.copies: dict[RankRef, dict[int, Image]] = {}
        self.decisions: dict[RankRef, dict[tuple[str, int], Decision]] = {}
        """The decisions of each rank in this timeline, by scope and step."""
        self.calls: dict[RankRef, CallLog] = {}
        """The decisions of each rank about its calls, in this timeline."""
        self.whole: dict[RankRef, dict[tuple[int, int], int]] = {}
        """Edges and steps of which the log has all that the call has made, and the generation that made it."""
        self.items: dict[RankRef, dict[tuple[int, int], bytes]] = {}
        """Rank → call and step → the encoded items that the rank has taken and whose results the log has."""
        self.sure: dict[RankRef, int] = {}
        """The newest generation of a rank whose log has all that it, and those before it, may have shown."""
        self.timeline = 0
        self.failed_at = -1
        """The newest step whose checkpoint cannot become complete because of this node."""
        self.owner: Any = None
        """The incarnation of the agent that commands what runs here."""
        self.ranks: dict[RankRef, Any] = {}
        """The newest process of each rank, as the zygotes know it: they outlive the agent."""
        self.granted: dict[RankRef, int] = {}
        """Rank → its grant, as its page has it. The agent writes the page before it sends the grant."""
        self.said: dict[tuple[RankRef, int], list[Any]] = {}
        """Rank and generation → its reports of itself."""
        self.ends: dict[tuple[RankRef, int], tuple[int | None, int | None]] = {}
        """Signal and exit code of those that have ended."""

    def steps(self, key: RankRef) -> tuple[int, ...]:
        """The complete snapshots of a rank, ascending."""
        return tuple(sorted(self.snaps.get(key, ())))

    def make_room(self, key: RankRef) -> None:
        """A third snapshot is about to be written over the oldest of the two that nobody has pinned."""
        kept = self.snaps.setdefault(key, {})
        free = sorted(step for step, snap in kept.items() if not snap.pinned)
        while len(free) > 1 and len(kept) > 1:
            del kept[free.pop(0)]

    def switch(self, key: RankRef, step: int, state: State | None, pinned: bool) -> None:
        """The snapshot is complete."""
        kept = self.snaps.setdefault(key, {})
        if pinned:
            stays = outlasting(waiting := self.pins(key))
            for old in waiting:
                kept[old].pinned = old == stays
        kept[step] = Snap(state, pinned)

    def drop_after(self, key: RankRef, step: int) -> None:
        """Forget the snapshots after `step`, and what was sent after it: orphans, but for what is whole."""
        self.snaps[key] = {at: snap for at, snap in self.snaps.get(key, {}).items() if at <= step}
        self.logs[key] = [e for e in self.logs.get(key, ()) if e.step <= step or self.is_whole(key, e.edge, e.step)]
        self.lines[key] = _upto(self.lines.get(key, {}), step)

    def is_whole(self, key: RankRef, edge: int, step: int) -> bool:
        """Whether the log has all of the call that has made what is sent on `edge`."""
        return (edge, step) in self.whole.get(key, ())

    def say_whole(self, key: RankRef, edges: Iterable[int], step: int, generation: int) -> None:
        """The log has all that `generation` has sent at `step` on these edges of a call."""
        self.whole.setdefault(key, {}).update(((edge, step), generation) for edge in edges)

    def clear(self, key: RankRef) -> None:
        """Forget all of a rank."""
        self.snaps[key] = {}
        self.logs[key] = []
        self.lines[key] = {}
        self.calls.pop(key, None)

    def pins(self, key: RankRef) -> tuple[int, ...]:
        """The snapshots that wait for being persisted."""
        return tuple(sorted(step for step, snap in self.snaps.get(key, {}).items() if snap.pinned))

    def trim(self, key: RankRef, committed: int) -> None:
        """Drop the records that nobody needs any more after the commit of step `committed`."""
        decided = self.decisions.get(key, {})
        for at in [at for at, decision in decided.items() if decision.step + decision.hold <= committed]:
            del decided[at]
        if key in self.calls:
            self.calls[key].trim(committed)
        pins = self.pins(key)
        log = self.logs.get(key)
        if log:
            self.logs[key] = [
                e for e in log if e.step + e.hold > committed or any(e.step <= pin < e.step + e.hold for pin in pins)
            ]

    def keep(self, key: RankRef, step: int, state: State | None, log: list[Entry], lines: Lines) -> None:
        """Take an image of another agent's snapshot, with the log up to it: the two that came last are kept."""
        kept = self.copies.setdefault(key, {})
        kept.pop(step, None)
        kept[step] = (state, list(log), dict(lines))
        for old in list(kept)[:-2]:
            del kept[old]

    def image(self, key: RankRef, step: int) -> Image | None:
        """A kept image, or one of a snapshot in this node's own memory."""
        if step in self.copies.get(key, {}):
            return self.copies[key][step]
        snap = self.snaps.get(key, {}).get(step)
        if snap is None:
            return None
        log = [entry for entry in self.logs.get(key, ()) if entry.step <= step]
        return snap.state, log, _upto(self.lines.get(key, {}), step)

    def install(self, key: RankRef, step: int, image: Image) -> None:
        """Make an image this node's own snapshot of the rank, as if it had been written here."""
        self.copies.pop(key, None)
        self.decisions.pop(key, None)
        self.calls.pop(key, None)
        self.snaps[key] = {step: Snap(image[0])}
        self.logs[key] = list(image[1])
        self.whole.pop(key, None)
        self.items.pop(key, None)
        self.sure.pop(key, None)
        self.lines[key] = dict(image[2])


def _upto(lines: Lines, step: int) -> Lines:
    return {at: line for at, line in lines.items() if at[0] <= step}


class Disk:
    """The job's folder: parts of checkpoints, each of one attempt, and which checkpoints are complete."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, RankRef, str], Part] = {}
        self.complete: dict[int, dict[RankRef, Part]] = {}
        self.damaged: set[int] = set()

    def write(self, step: int, key: RankRef, attempt: str, state: State | None, log: list[Entry], lines: Lines) -> None:
        """A rank's part: its state, what of its log crosses `step`, and the line of metrics that it had begun."""
        crossing = tuple(e for e in log if e.step <= step < e.step + e.hold)
        self.parts[step, key, attempt] = (state, crossing, lines.get((step, True)))

    def seal(self, step: int, attempts: dict[RankRef, str]) -> str:
        """Make the checkpoint of `step` complete, of these attempts, or say what is missing."""
        missing = [key for key, attempt in attempts.items() if (step, key, attempt) not in self.parts]
        if missing:
            return f"{missing} are not on disk"
        self.complete[step] = {key: self.parts[step, key, attempt] for key, attempt in attempts.items()}
        self.damaged.discard(step)
        return ""

    def newest(self) -> int:
        """The newest complete checkpoint that is intact, -1 if there is none."""
        return max((step for step in self.complete if step not in self.damaged), default=-1)

    def crossing(self, step: int, graph: LogicalGraph, edge: int, consumer: int) -> dict[tuple[int, int], list[Entry]]:
        """The records of `edge` for `consumer` in the checkpoint of `step`, by step and producer."""
        role = graph.ops[graph.edges[edge].src].role
        found: dict[tuple[int, int], list[Entry]] = {}
        for (name, rank), (_, log, _) in self.complete[step].items():
            if name == role:
                for entry in log:
                    if entry.edge == edge and consumer in entry.consumers:
                        found.setdefault((entry.step, rank), []).append(entry)
        return found
