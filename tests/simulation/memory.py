"""Where simulated snapshots and logs lie: a node's memory, which outlives processes, and the disk."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tests.simulation.model import RankKey, State, Value

from rolemesh.graph.logical import LogicalGraph

__all__ = ["Disk", "Entry", "NodeMemory", "Snap"]


class Entry(NamedTuple):
    """A record of an send log: a chunk of what was made at `step`; `item` None: only the mark that none follows."""

    edge: int
    step: int
    chunk: int
    last: bool
    consumers: tuple[int, ...]
    item: Value | None
    hold: int


class Snap:
    """A snapshot in memory: `pinned` ones wait for being persisted."""

    __slots__ = ("pinned", "state")

    def __init__(self, state: State | None, pinned: bool = False) -> None:
        self.state, self.pinned = state, pinned


Image: TypeAlias = tuple[State | None, list[Entry], list[int]]
"""All that a rank needs to go on: its state, what it has sent up to then, and the steps of its lines of metrics."""


class NodeMemory:
    """One agent's folder in its node's shared memory. It outlives the agent, but not the node."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.snaps: dict[RankKey, dict[int, Snap]] = {}
        self.logs: dict[RankKey, list[Entry]] = {}
        self.lines: dict[RankKey, list[int]] = {}
        self.copies: dict[RankKey, dict[int, Image]] = {}
        self.timeline = 0

    def steps(self, key: RankKey) -> tuple[int, ...]:
        """The complete snapshots of a rank, ascending."""
        return tuple(sorted(self.snaps.get(key, ())))

    def make_room(self, key: RankKey) -> None:
        """A third snapshot is about to be written over the oldest of the two that nobody has pinned."""
        kept = self.snaps.setdefault(key, {})
        free = sorted(step for step, snap in kept.items() if not snap.pinned)
        while len(free) > 1 and len(kept) > 1:
            del kept[free.pop(0)]

    def switch(self, key: RankKey, step: int, state: State | None, pinned: bool) -> None:
        """The snapshot is complete."""
        kept = self.snaps.setdefault(key, {})
        if pinned:
            for old in self.pins(key)[:-1]:
                kept[old].pinned = False  # of those that wait for a slow disk, the newest goes on waiting
        kept[step] = Snap(state, pinned)

    def drop_after(self, key: RankKey, step: int) -> None:
        """Forget the snapshots after `step`, and what was sent after it: orphans."""
        self.snaps[key] = {at: snap for at, snap in self.snaps.get(key, {}).items() if at <= step}
        self.logs[key] = [entry for entry in self.logs.get(key, ()) if entry.step <= step]
        self.lines[key] = [line for line in self.lines.get(key, ()) if line <= step]

    def clear(self, key: RankKey) -> None:
        """Forget all of a rank."""
        self.snaps[key] = {}
        self.logs[key] = []
        self.lines[key] = []

    def pins(self, key: RankKey) -> tuple[int, ...]:
        """The snapshots that wait for being persisted."""
        return tuple(sorted(step for step, snap in self.snaps.get(key, {}).items() if snap.pinned))

    def trim(self, key: RankKey, committed: int) -> None:
        """Drop the records that nobody needs any more after the commit of step `committed`."""
        pins = self.pins(key)
        log = self.logs.get(key)
        if log:
            self.logs[key] = [
                e for e in log if e.step + e.hold > committed or any(e.step <= pin < e.step + e.hold for pin in pins)
            ]

    def keep(self, key: RankKey, step: int, state: State | None, log: list[Entry], lines: list[int]) -> None:
        """Take an image of another agent's snapshot, with the log up to it: the two that came last are kept."""
        kept = self.copies.setdefault(key, {})
        kept.pop(step, None)
        kept[step] = (state, list(log), list(lines))
        for old in list(kept)[:-2]:
            del kept[old]

    def image(self, key: RankKey, step: int) -> Image | None:
        """A kept image, or one of a snapshot in this node's own memory."""
        if step in self.copies.get(key, {}):
            return self.copies[key][step]
        snap = self.snaps.get(key, {}).get(step)
        if snap is None:
            return None
        log = [entry for entry in self.logs.get(key, ()) if entry.step <= step]
        return snap.state, log, [line for line in self.lines.get(key, ()) if line <= step]

    def install(self, key: RankKey, step: int, image: Image) -> None:
        """Make an image this node's own snapshot of the rank, as if it had been written here."""
        self.copies.pop(key, None)
        self.snaps[key] = {step: Snap(image[0])}
        self.logs[key] = list(image[1])
        self.lines[key] = list(image[2])


class Disk:
    """The job's folder: parts of persisted snapshots, each of one attempt, and which sets of them are complete."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, RankKey, str], tuple[State | None, tuple[Entry, ...]]] = {}
        self.complete: dict[int, dict[RankKey, tuple[State | None, tuple[Entry, ...]]]] = {}
        self.damaged: set[int] = set()

    def write(self, step: int, key: RankKey, attempt: str, state: State | None, log: list[Entry]) -> None:
        """A rank's part: its state, and what of its log crosses `step`."""
        crossing = tuple(e for e in log if e.step <= step < e.step + e.hold)
        self.parts[step, key, attempt] = (state, crossing)

    def seal(self, step: int, attempts: dict[RankKey, str]) -> str:
        """Make the set of `step` complete, of these attempts, or say what is missing."""
        missing = [key for key, attempt in attempts.items() if (step, key, attempt) not in self.parts]
        if missing:
            return f"{missing} are not on disk"
        self.complete[step] = {key: self.parts[step, key, attempt] for key, attempt in attempts.items()}
        return ""

    def newest(self) -> int:
        """The newest complete set that is intact, -1 if there is none."""
        return max((step for step in self.complete if step not in self.damaged), default=-1)

    def crossing(self, step: int, graph: LogicalGraph, edge: int, consumer: int) -> dict[tuple[int, int], list[Entry]]:
        """The records of `edge` for `consumer` in the set of `step`, by step and producer."""
        role = graph.ops[graph.edges[edge].src].role
        found: dict[tuple[int, int], list[Entry]] = {}
        for (name, rank), (_, log) in self.complete[step].items():
            if name == role:
                for entry in log:
                    if entry.edge == edge and consumer in entry.consumers:
                        found.setdefault((entry.step, rank), []).append(entry)
        return found
