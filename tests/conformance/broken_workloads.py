"""Workloads that each do one thing wrong."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, field_validator
from tests.conformance.counter import Counter

from rolemesh import Batch, Broadcast, RankContext, Split, State, operator, service
from rolemesh.api.workload import OperatorSpec

Counting = Counter.Options
SHARED: list[int] = []


class Undocumented(Counter):
    __doc__ = None


class FromTheFuture(Counter):
    """Written for a kernel that does not exist yet."""

    api_version = 99


class Forgiving(Counter):
    """Takes options that it does not know."""

    class Options(Counting, extra="ignore"):
        pass


class Unexplained(Counter):
    """Has an option that nobody explains."""

    class Options(Counting):
        depth: int = 1


class Unspeakable(Counter):
    """Has an option that JSON cannot say."""

    class Options(Counting, arbitrary_types_allowed=True):
        lock: np.random.Generator | None = Field(default=None, description="No JSON.")


class Doubling(Counter):
    """Has options that are others after each validation."""

    class Options(Counting):
        @field_validator("rows")
        @classmethod
        def _twice(cls, rows: int) -> int:
            return 2 * rows


class Sharing(Counter):
    """Has one list for all."""

    class Options(Counting):
        names: list[int] = Field(default_factory=lambda: SHARED, description="Shared by all.")


class OneWord(Counter):
    """Has a string where a sequence of modules belongs."""

    preload = "json"


class Idle(Counter):
    """Has no operators."""

    @classmethod
    def operators(cls, options: Any) -> Mapping[str, OperatorSpec]:
        return {}


class Silent(Counter):
    """Has an operator without a docstring."""

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        super().add(rows)


class Moody(Counter):
    """Has an operator only every other time."""

    asked: ClassVar[int] = 0

    @classmethod
    def operators(cls, options: Any) -> Mapping[str, OperatorSpec]:
        cls.asked += 1
        known = super().operators(options)
        return known if cls.asked % 2 else {"add": known["add"]}


class Thorough(Counter):
    """Imports something heavy to check its options."""

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        import matplotlib  # noqa: F401


class Threaded(Counter):
    """Preloads a module that starts a thread."""

    preload = ("tests.conformance.careless",)


class Once(Counter):
    """Can be set up once in a process."""

    made: ClassVar[bool] = False

    def setup(self, ctx: RankContext) -> None:
        if Once.made:
            raise RuntimeError("there is one already")
        Once.made = True
        super().setup(ctx)


class Littering(Counter):
    """Starts a process and forgets it."""

    def setup(self, ctx: RankContext) -> None:
        super().setup(ctx)
        subprocess.Popen(["sleep", "60"])


class Locking(Counter):
    """Takes a lock that only its teardown gives back."""

    def setup(self, ctx: RankContext) -> None:
        super().setup(ctx)
        os.close(os.open(ctx.tmp_dir / f"lock-{ctx.rank}", os.O_CREAT | os.O_EXCL))

    def teardown(self) -> None:
        (self.ctx.tmp_dir / f"lock-{self.ctx.rank}").unlink()


class Greedy(Counter):
    """Cannot do without a row."""

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers."""
        self.total = self.total + rows["number"][0]


class Personal(Counter):
    """Seeds by rank."""

    @operator(rows=Split(), returns=Split())
    def noisy(self, rows: Batch) -> Batch:
        """Noise that depends on who made it."""
        return rows | {"number": self.ctx.rng(self.ctx.rank, self.ctx.step).standard_normal(rows.rows)}


class Disagreeing(Counter):
    """Says that all ranks return the same."""

    @operator(rows=Split(), returns=Broadcast())
    def noisy(self, rows: Batch) -> Batch:
        """The rank's part, declared as the whole."""
        return super().noisy(rows)


class Scribbling(Counter):
    """Writes into its input."""

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers and wipe them out."""
        super().add(rows)
        column = np.asarray(rows["number"])
        ctypes.memset(column.ctypes.data, 0, column.nbytes)


class Chunky(Counter):
    """Computes something else with other chunks."""

    @operator(rows=Split(), returns=Split(), streaming=True)
    def squared(self, rows: Iterator[Batch]) -> Iterator[Batch]:
        """The squares, relative to the largest of the chunk."""
        for chunk in rows:
            squares = np.asarray(chunk["number"]) ** 2
            yield Batch({"number": squares / max(squares, default=1.0)})


class Hashing(Counter):
    """Depends on the order of hashes."""

    def setup(self, ctx: RankContext) -> None:
        super().setup(ctx)
        self.total = self.total + hash("seed") % 1000


class Reborn(Counter):
    """Depends on how often it was started."""

    def setup(self, ctx: RankContext) -> None:
        super().setup(ctx)
        self.total = self.total + ctx.generation


class Disturbed(Counter):
    """Goes on otherwise after a snapshot."""

    def snapshot(self) -> State:
        self.total = self.total + 1
        return super().snapshot()


class Late(Counter):
    """Has a moment only after the first step."""

    moment: float | None = None

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers."""
        super().add(rows)
        self.moment = 0.5

    def snapshot(self) -> State:
        return super().snapshot() | ({} if self.moment is None else {"moment": self.moment})


class Forgetful(Counter):
    """Has state that the snapshot lacks."""

    seen = 0

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers, each weighted by how many calls there were."""
        self.seen += 1
        self.total = self.total + self.seen * float(np.sum(rows["number"]))


class Rounding(Counter):
    """Takes its state back in another precision."""

    def restore(self, state: State) -> None:
        self.total = np.array(state["total"], dtype=np.float32)


class LeavesOrphans(Counter):
    """Finds what an earlier generation has left in its folder."""

    def setup(self, ctx: RankContext) -> None:
        super().setup(ctx)
        self.marker = Path(ctx.tmp_dir, f"seen-{ctx.rank}")
        self.weight = 2.0 if self.marker.exists() else 1.0

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers."""
        self.marker.touch()
        self.total = self.total + self.weight * float(np.sum(rows["number"]))


class Dropping(Counter):
    """Gives memory back and does not bring back what was in it."""

    def offload(self) -> None:
        self.total = np.zeros(2)


class Clocked(Counter):
    """Looks at the clock in each tenth step."""

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers."""
        super().add(rows)
        if self.ctx.step % 10 == 9:
            self.total = self.total + time.time() % 1


class Warming(Counter):
    """Has a momentum that counts from the sixth call on, and that the snapshot lacks."""

    momentum, calls = 0.0, 0

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers, and later their momentum."""
        super().add(rows)
        self.calls += 1
        self.momentum = 0.9 * self.momentum + float(np.sum(rows["number"]))
        if self.calls > 5:
            self.total = self.total + self.momentum


class Tenth(Counter):
    """Does something else in each tenth step."""

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers."""
        super().add(rows)
        if self.ctx.step % 10 == 9:
            self.tenth(rows)

    def tenth(self, rows: Batch) -> None:
        pass


class ScribblingLate(Tenth):
    """Wipes its input out."""

    def tenth(self, rows: Batch) -> None:
        column = np.asarray(rows["number"])
        ctypes.memset(column.ctypes.data, 0, column.nbytes)


class Warmed(Tenth):
    """Has an entry in its state that is not there before."""

    warm = False

    def tenth(self, rows: Batch) -> None:
        self.warm = True

    def snapshot(self) -> State:
        return super().snapshot() | ({"warm": True} if self.warm else {})


class PersonalLate(Counter):
    """Seeds by rank in each tenth step."""

    @operator(rows=Split(), returns=Split())
    def noisy(self, rows: Batch) -> Batch:
        """Noise that now and then depends on who made it."""
        if self.ctx.step % 10 != 9:
            return super().noisy(rows)
        return rows | {"number": self.ctx.rng(self.ctx.rank, self.ctx.step).standard_normal(rows.rows)}


class HashingLate(Tenth):
    """Adds in the order of a set of strings, which is another one in each process."""

    def tenth(self, rows: Batch) -> None:
        for name in {"x" * length for length in range(64)}:
            self.total = self.total * 0.5 + len(name)


class Epochs(Counter):
    """Begins a new epoch when the position is at an end, and so once more where it is restored just there."""

    position = epoch = 0

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers, weighted by the epoch."""
        self.position += 1
        self.total = self.total + self.epoch * float(np.sum(rows["number"]))
        if self.position % 16 == 0:
            self.epoch += 1

    def snapshot(self) -> State:
        return super().snapshot() | {"position": self.position, "epoch": self.epoch}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.position, self.epoch = int(state["position"]), int(state["epoch"])
        if self.position and self.position % 16 == 0:
            self.epoch += 1


class Racing(Counter):
    """Adds in the order in which threads come, which is another one now and then."""

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers."""
        super().add(rows)
        if os.urandom(1)[0] < 16:
            self.total = np.nextafter(self.total, np.inf)


class Aliased(Counter):
    """Returns the object that it goes on to change, and counts from it."""

    history: ClassVar[list[float]] = []

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers, and all that this process has added before."""
        self.history.append(float(np.sum(rows["number"])))
        self.total = self.total + sum(self.history[-20:])


class Global(Counter):
    """Draws from the process's global random numbers in each sixteenth step."""

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers."""
        super().add(rows)
        if self.ctx.step % 16 == 15:
            self.total = self.total + random.random()


class Numbered(Counter):
    """Depends on the number of its process in each twentieth step."""

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers."""
        super().add(rows)
        if self.ctx.step % 20 == 19:
            self.total = self.total + os.getpid()


class Detaching(Counter):
    """Starts a process in a session of its own at its third call."""

    calls = 0

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        """Add the numbers."""
        super().add(rows)
        self.calls += 1
        if self.calls == 3:
            subprocess.run(["sh", "-c", "setsid sleep 60 > /dev/null 2>&1 &"], check=True)


class Helped(Counter):
    """Ends its helper in teardown only."""

    def setup(self, ctx: RankContext) -> None:
        super().setup(ctx)
        self.helper = subprocess.Popen(["sleep", "60"], start_new_session=True)

    def teardown(self) -> None:
        self.helper.kill()
        self.helper.wait()


class Lending(Counter):
    """Lends what its service changes, while a consumer may be reading it."""

    def setup(self, ctx: RankContext) -> None:
        super().setup(ctx)
        self.lent = ctx.lend({"w": np.zeros(4)})["w"]

    @service
    def double(self, number: int) -> float:
        self.lent += 1
        return 2.0 * number


class LendingToThread(Counter):
    """Lends what a thread changes after the operator has returned."""

    def setup(self, ctx: RankContext) -> None:
        super().setup(ctx)
        self.lent = ctx.lend({"w": np.zeros(4)})["w"]

    @operator(rows=Split())
    def add(self, rows: Batch) -> None:
        super().add(rows)
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        while True:
            self.lent += 1
            time.sleep(0.001)
