"""Calls between ranks as state machines: the choice of the callee, repetition after a death, and duplicates. Pure.

A call has a key that is the same in each life of its caller. It is made of the operator, the step, the call's number
there and its content. A restarted caller repeats its steps and asks with the same keys. A callee that knows a key
answers from memory, so in one life it runs no call twice. It keeps the answer until the caller cannot be restored to
before that step any more. This is the duplicate suppression of remote procedure calls (Birrell and Nelson 1984,
"Implementing remote procedure calls", section 3.2), with the commit in place of the acknowledgement.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh.graph.schedule import Activity

__all__ = ["OPEN", "CallEdges", "CalleeState", "CallerState", "Known", "OpenCall", "edges_of_calls", "hold_of_call"]

T = TypeVar("T")
Q = TypeVar("Q")

FIRST_EDGE: Final = 1 << 24
"""First number for calls, which travel like data: each pair of roles has two numbers in place of an edge's."""
OPEN: Final = 64
"""Maximum number of a caller's calls that are under way to one rank."""
OPEN_BYTES: Final = 32 << 20
"""Maximum bytes of these calls, if there is more than one."""


class CallEdges(NamedTuple):
    """The numbers that stand for the edges between a calling role and a called one: there, and back."""

    caller: str
    callee: str
    asks: int
    answers: int


def edges_of_calls(graph: LogicalGraph) -> tuple[CallEdges, ...]:
    """Return all calling pairs of a flow."""
    numbers = range(FIRST_EDGE, FIRST_EDGE + 2 * len(graph.callers), 2)
    return tuple(CallEdges(*pair, at, at + 1) for pair, at in zip(graph.callers, numbers, strict=True))


def hold_of_call(op: OpCall, activity: Activity, unrepeated: Collection[str]) -> int:
    """Return for how many steps after its own a rank restored at the commit may repeat a call of `op`.

    See `edge.hold_of` for operators that are repeated.
    """
    period = activity.periods[op.id]
    return 0 if op.role in unrepeated or op.returns is not None or period is None else period.every


class OpenCall(Generic[T]):
    """A call without an answer. `life`: the only life of its rank that may answer; -1 if any rank may."""

    __slots__ = ("item", "key", "left", "life", "nbytes", "once", "rank", "role", "sent_to")

    def __init__(
        self, key: bytes, role: str, item: T, nbytes: int = 1, *, rank: int = -1, life: int = -1,
        once: bool = False, left: bool = False,
    ) -> None:  # fmt: skip
        """`rank`: the preferred rank if it is up (-1: any).

        `once`: the service is not repeatable. `left`: a former life of the caller has sent the call.
        """
        self.key, self.role, self.item, self.nbytes, self.rank, self.life = key, role, item, nbytes, rank, life
        self.once, self.left = once, left
        self.sent_to = -1
        """The life of the rank to which the call was sent; -1 before."""

    @property
    def uncertain(self) -> bool:
        """True if a rank that did not answer may have run the call, and no other may run it."""
        return self.once and (self.left or self.sent_to >= 0)

    @property
    def ref(self) -> RankRef:
        """The called rank."""
        return RankRef(self.role, self.rank)


class CallerState(Generic[T]):
    """A caller's open calls: each is with one rank, or waits for one that is up and has few of them."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        """`sizes`: the number of ranks of each role that may be called."""
        self._ranks = {role: [RankRef(role, rank) for rank in range(size)] for role, size in sizes.items()}
        self._lives: dict[RankRef, int] = {}
        self._dead: dict[RankRef, int] = {}
        self._asked: Counter[RankRef] = Counter()
        self._bytes: Counter[RankRef] = Counter()
        self._bound: dict[RankRef, deque[OpenCall[T]]] = {}
        self._free: dict[str, deque[OpenCall[T]]] = {role: deque() for role in sizes}
        self.open: dict[bytes, OpenCall[T]] = {}
        """The open calls by key, in the order in which they were made."""

    def life(self, rank: RankRef) -> int:
        """Return the life in which a rank is up; -1 if it is not."""
        life = self._lives.get(rank, -1)
        return life if life > self._dead.get(rank, -1) else -1

    def up(self, role: str) -> list[int]:
        """Return the ranks of a role that are up."""
        return [ref.rank for ref in self._ranks[role] if self.life(ref) >= 0]

    def ask(self, call: OpenCall[T]) -> bool:
        """Add a new call. Return False if it is lost: the only life that may answer it is over."""
        if call.life >= 0 and self._gone(call):
            return False
        self.open[call.key] = call
        if call.once and call.rank < 0:  # a caller that has lost its log finds the same rank
            call.rank = int.from_bytes(call.key[:4], "little") % len(self._ranks[call.role])
        if call.life < 0 and self.life(call.ref) < 0:
            call.rank = -1
        self._queue(call).append(call)
        return True

    def leaving(self, role: str) -> Iterator[OpenCall[T]]:
        """Yield the calls to `role` that may be sent now, each with its rank."""
        for key in [key for key, queue in self._bound.items() if queue and key[0] == role]:
            queue = self._bound[key]
            while queue and self.life(key) >= 0 and self._room(key, queue[0]):
                yield self._sends(queue.popleft(), key)
        free = self._free[role]
        while free:
            there = [key for key in self._ranks[role] if self.life(key) >= 0 and self._room(key, free[0])]
            if not there:
                return
            yield self._sends(free.popleft(), min(there, key=self._asked.__getitem__))

    def answered(self, key: bytes, rank: int, life: int) -> OpenCall[T] | None:
        """Close a call that `rank` has answered in `life`; None if the call is not there now."""
        call = self.open.get(key)
        return self.close(key) if call is not None and (call.rank, call.sent_to) == (rank, life) else None

    def close(self, key: bytes) -> OpenCall[T] | None:
        """Close a call that is answered or given up; None if it is not open."""
        call = self.open.pop(key, None)
        if call is None:
            return None
        if call.sent_to >= 0:
            self._unsend(call)
        else:
            self._queue(call).remove(call)
        return call

    def lives(self, rank: RankRef, life: int) -> list[OpenCall[T]]:
        """Note that a rank is up in `life`. The calls that its earlier lives did not answer are repeated.

        Returns those that are lost: their session is, or their service is not repeatable.
        """
        if life <= self._lives.get(rank, -1):
            return []
        self._lives[rank] = life
        return self._take_back(rank, life)

    def died(self, rank: RankRef, life: int) -> list[OpenCall[T]]:
        """Note that a rank is dead up to `life`: as `lives`."""
        if life <= self._dead.get(rank, -1):
            return []
        self._dead[rank] = life
        return self._take_back(rank, life + 1)

    def resized(self, role: str, size: int) -> list[OpenCall[T]]:
        """Note that `role` has `size` new ranks, none of them up, and that its former ranks are dead: as `lives`."""
        before, self._ranks[role] = self._ranks[role], [RankRef(role, rank) for rank in range(size)]
        newest = max((call.life for call in self.open.values() if call.role == role), default=-1)
        return [call for rank in before for call in self.died(rank, max(newest, self._lives.get(rank, -1)))]

    def _take_back(self, rank: RankRef, life: int) -> list[OpenCall[T]]:
        role, number = rank
        mine = [call for call in self.open.values() if call.role == role and call.rank == number]
        lost = [call for call in mine if self._is_lost(call, life)]
        for call in lost:
            self.close(call.key)
        again = [call for call in mine if call.life < 0 and call.sent_to < life and call.key in self.open]
        for call in again:
            if call.sent_to >= 0:
                self._unsend(call)
            else:
                self._queue(call).remove(call)
            call.sent_to = call.rank = -1
        self._free[role].extendleft(reversed(again))
        return lost

    def _is_lost(self, call: OpenCall[T], life: int) -> bool:
        return self._gone(call) if call.life >= 0 else call.once and 0 <= call.sent_to < life

    def _gone(self, call: OpenCall[T]) -> bool:
        known = self._lives.get(call.ref, -1), self._dead.get(call.ref, -1) + 1
        return call.rank >= len(self._ranks[call.role]) or call.life < max(known)

    def _queue(self, call: OpenCall[T]) -> deque[OpenCall[T]]:
        if call.rank < 0:
            return self._free[call.role]
        return self._bound.setdefault(call.ref, deque())

    def _room(self, rank: RankRef, call: OpenCall[T]) -> bool:
        asked = self._asked[rank]
        return not asked or (asked < OPEN and self._bytes[rank] + call.nbytes <= OPEN_BYTES)

    def _sends(self, call: OpenCall[T], rank: RankRef) -> OpenCall[T]:
        call.rank, call.sent_to = rank.rank, self._lives[rank]
        self._asked[rank] += 1
        self._bytes[rank] += call.nbytes
        return call

    def _unsend(self, call: OpenCall[T]) -> None:
        self._asked[call.ref] -= 1
        self._bytes[call.ref] -= call.nbytes


class Known(Generic[Q, T]):
    """A call that a callee knows: its latest caller, its content, and its answer once there is one.

    `given_up`: the caller no longer waits for it.
    """

    __slots__ = (
        "answer", "caller", "generation", "given_up", "key", "method", "nbytes", "request", "runs", "step", "until",
    )  # fmt: skip

    def __init__(
        self, caller: RankRef, generation: int, key: bytes, step: int, until: int, method: str, request: Q
    ) -> None:
        self.caller, self.generation, self.key, self.step, self.until = caller, generation, key, step, until
        self.method = method
        self.request: Q | None = request
        self.answer: T | None = None
        self.nbytes = 0
        self.runs = self.given_up = False


class CalleeState(Generic[Q, T]):
    """The calls to a rank, and its answers for as long as a caller may repeat them."""

    def __init__(
        self, callers: Collection[RankRef], concurrency: Mapping[str, int], *, keeps: bool, every: int, max_bytes: int,
        once: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`concurrency`: the number of calls of a method that may run at once. `once`: methods that never run again.

        `keeps`: callers may be restored, at multiples of `every` steps. No call of later steps begins while `max_bytes`
        of answers are kept, if a commit frees some.
        """
        self._concurrency, self._keeps, self._every, self._max_bytes = concurrency, keeps, every, max_bytes
        self._once = once
        self._known: dict[tuple[RankRef, bytes], Known[Q, T]] = {}
        self._addresses: dict[RankRef, int] = dict.fromkeys(callers, -1)
        self._finished: dict[RankRef, tuple[int, int]] = dict.fromkeys(callers, (-1, -1))
        self._queues: dict[str, deque[Known[Q, T]]] = {method: deque() for method in concurrency}
        self._running: Counter[str] = Counter()
        self._untils: Counter[int] = Counter()
        self._committed = -1
        self.kept_bytes = 0

    @property
    def finished(self) -> int:
        """The newest step that all callers have finished."""
        return min((step for _, step in self._finished.values()), default=-1)

    def behind(self, step: int) -> list[RankRef]:
        """Return the callers that have not finished `step`."""
        return [key for key, (_, finished) in self._finished.items() if finished < step]

    @property
    def running(self) -> int:
        """Number of calls that run."""
        return self._running.total()

    def knows(self, caller: RankRef, method: str) -> bool:
        """Return True if there is such a caller, and such a method."""
        return caller in self._addresses and method in self._queues

    def asked(
        self, caller: RankRef, generation: int, key: bytes, step: int, until: int, method: str, request: Q
    ) -> Known[Q, T] | None:
        """Take a call. Return it if it is answered already and the answer can be sent."""
        known = self._known.get((caller, key))
        if known is None or self._is_void(known):
            if until > self._committed:
                known = Known(caller, generation, key, step, until, method, request)
                self._known[caller, key] = known
                self._queues[method].append(known)
            return None
        known.generation = max(known.generation, generation)
        return known if known.answer is not None and self._reachable(known) else None

    def gives_up(self, caller: RankRef, generation: int, key: bytes) -> Known[Q, T] | None:
        """Note that `caller` no longer waits for a call. Return the call if it runs, and is to be cancelled."""
        known = self._known.get((caller, key))
        if known is None or known.answer is not None or known.given_up or generation < known.generation:
            return None
        known.given_up = True
        if known.runs:
            return known
        self._queues[known.method].remove(known)
        del self._known[caller, key]
        return None

    def begins(self) -> Known[Q, T] | None:
        """Return a call to run now; None if there is none."""
        reach = self._reach
        for method, queue in self._queues.items():
            if self._running[method] >= self._concurrency[method]:
                continue
            held = 0
            for _ in range(len(queue)):
                known = queue.popleft()
                generation, finished = self._finished[known.caller]
                if generation >= known.generation and finished >= known.until:  # its caller has given it up
                    del self._known[known.caller, known.key]
                elif known.step > reach:
                    queue.append(known)
                    held += 1
                else:
                    queue.rotate(held)
                    self._running[method] += 1
                    known.runs = True
                    return known
        return None

    def done(self, known: Known[Q, T], answer: T, nbytes: int) -> bool:
        """Note the answer of a call. Return True if the answer can be sent now.

        A call that its caller has given up is forgotten, and may run again, unless its method never does.
        """
        self._running[known.method] -= 1
        if self._is_void(known):
            if self._known.get((known.caller, known.key)) is known:
                del self._known[known.caller, known.key]
            return False
        known.answer, known.nbytes, known.request = answer, nbytes, None
        self._untils[known.until] += 1
        self.kept_bytes += nbytes
        reachable = self._reachable(known)
        if self._needless(known):
            self._forget(known)
        return reachable

    def met(self, caller: RankRef, generation: int) -> list[Known[Q, T]]:
        """Note the address of a caller. Return the answers that wait for it."""
        if generation <= self._addresses[caller]:
            return []
        self._addresses[caller] = generation
        return [
            known
            for (who, _), known in self._known.items()
            if who == caller and known.answer is not None and known.generation == generation
        ]

    def resized(self, role: str, size: int) -> None:
        """Note that the calling `role` has `size` ranks now. The calls of its former ranks are dropped."""
        gone = [key for key in self._addresses if key[0] == role]
        for key in gone:
            del self._addresses[key], self._finished[key]
        for queue in self._queues.values():
            for known in [known for known in queue if known.caller in gone]:
                queue.remove(known)
                del self._known[known.caller, known.key]
        self._addresses |= {RankRef(role, rank): -1 for rank in range(size)}
        self._finished |= {RankRef(role, rank): (-1, -1) for rank in range(size)}

    def has_finished(self, caller: RankRef, generation: int, step: int) -> list[Known[Q, T]]:
        """Note that a caller finished `step`. It sends no further calls in it in this generation.

        Returns its running calls up to this step, which it has given up, to be cancelled.
        """
        if caller not in self._finished or (generation, step) <= self._finished[caller]:
            return []
        self._finished[caller] = generation, step
        if not self._keeps:
            self._free(lambda known: known.caller == caller and known.step <= step)
        if not self.running:
            return []
        mine = [known for known in self._known.values() if known.caller == caller and known.until <= step]
        return [known for known in mine if known.runs and self.gives_up(caller, generation, known.key) is known]

    def committed(self, step: int) -> None:
        """Forget the answers up to `step`: no caller repeats calls of these steps."""
        if step > self._committed:
            self._committed = step
            self._free(lambda known: known.until <= step)

    def _is_void(self, known: Known[Q, T]) -> bool:
        return known.given_up and known.method not in self._once

    def _free(self, gone: Callable[[Known[Q, T]], bool]) -> None:
        for known in [known for known in self._known.values() if known.answer is not None and gone(known)]:
            self._forget(known)

    def _forget(self, known: Known[Q, T]) -> None:
        del self._known[known.caller, known.key]
        self.kept_bytes -= known.nbytes
        self._untils[known.until] -= 1
        if not self._untils[known.until]:
            del self._untils[known.until]

    def _needless(self, known: Known[Q, T]) -> bool:
        if self._keeps:
            return known.until <= self._committed
        return known.step <= self._finished[known.caller][1]

    def _reachable(self, known: Known[Q, T]) -> bool:
        return self._addresses.get(known.caller, -1) >= known.generation

    @property
    def _reach(self) -> float:
        """The last step whose calls may run.

        Calls up to the next commit that frees memory always may: it may need them.
        """
        if self.kept_bytes < self._max_bytes or not self._untils:
            return inf
        return (min(self._untils) // self._every + 1) * self._every - 1
