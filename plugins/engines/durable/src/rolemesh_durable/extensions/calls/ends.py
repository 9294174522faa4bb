"""Both ends of a rank's calls, without I/O: what is lost, asked again, cancelled or answered when news come.

`states` has the states of single calls, and `calling` and `serving` carry out what is decided here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from rolemesh.api.rank_ref import RankRef
from rolemesh.api.service import ServiceSpec
from rolemesh_durable.extensions.calls.frames import LOST, UNCERTAIN
from rolemesh_durable.extensions.calls.history import ASKED, CallHistory, asked
from rolemesh_durable.extensions.calls.states import CalleeState, CallerState, Known, OpenCall
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

__all__ = ["CalleeEnd", "CallerEnd"]

Q = TypeVar("Q")
T = TypeVar("T")


class CallerEnd(ABC, Generic[T]):
    """The calls that one rank makes. `T` is what it keeps of each: `OpenCall.item`."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        """`sizes`: the world sizes of the roles that the rank may call."""
        self._sizes = dict(sizes)
        self._state: CallerState[T] = CallerState(dict(sizes))
        self._met = {RankRef(role, rank): -1 for role, size in sizes.items() for rank in range(size)}
        """The newest life of each rank that may be called."""
        self._finished = -1
        self._history = CallHistory()

    # ------------------------------------------------------------------------------------- what carries decisions out

    @abstractmethod
    def _life(self, rank: RankRef) -> int:
        """Return the newest life of a rank whose address is known; -1 if there is none."""

    @abstractmethod
    def _tell(self, rank: RankRef) -> None:
        """Tell a rank this rank's finished step."""

    @abstractmethod
    def _decide(self, scope: str, call: OpenCall[T], body: bytes) -> None:
        """Log a decision about a call."""

    @abstractmethod
    def _send(self, call: OpenCall[T]) -> None:
        """Send the call to the rank that it has now."""

    @abstractmethod
    def _gives_up(self, call: OpenCall[T]) -> None:
        """Let the rank of the call cancel it, unless this rank stops and its next life repeats the call."""

    @abstractmethod
    def _has_lost(self, call: OpenCall[T], kind: int) -> None:
        """End a call without an answer: `LOST` or `UNCERTAIN`."""

    # ----------------------------------------------------------------------------------------------------------- news

    def finished(self, step: int) -> None:
        """Note that all operators of `step` are done."""
        self._finished = step
        self._history.finished(step)

    def flush(self) -> None:
        """Tell the callees this rank's finished step."""
        for rank, life in self._met.items():
            if life >= 0:
                self._tell(rank)

    def rewire(self) -> None:
        """Handle new lives of called ranks."""
        for rank, met in self._met.items():
            life = self._life(rank)
            if life > met:
                self._met[rank] = life
                self._lose(self._state.lives(rank, life))
                self._tell(rank)
        self._leave()

    def resized(self, sizes: Mapping[str, int]) -> None:
        """Handle roles that have other ranks now, whose addresses follow. Their sessions are lost."""
        for role in [role for role in self._sizes if role in sizes]:
            self._sizes[role] = sizes[role]
            self._lose(self._state.resized(role, sizes[role]))
            self._met = {rank: life for rank, life in self._met.items() if rank.role != role}
            self._met |= {RankRef(role, rank): -1 for rank in range(sizes[role])}

    def advanced(self, advance: Watermarks) -> None:
        """Handle the ranks that have ended, from the master."""
        for role, rank, life in advance.away:
            if (role, rank) in self._met:
                self._lose(self._state.died(RankRef(role, rank), life))
        if advance.away:
            self._leave()

    # ---------------------------------------------------------------------------------------------------------- calls

    def _open(self, call: OpenCall[T]) -> bool:
        """Begin a call, which leaves with the next `_leave`. Return False if it is lost: its session has ended."""
        if there := self._state.ask(call):
            return there
        self._lose([call])
        return False

    def _leave(self) -> None:
        """Send the calls for which there is room."""
        for role in self._sizes:
            for call in self._state.leaving(role):
                self._decide(ASKED, call, asked(call))
                self._send(call)

    def _answered(self, key: bytes, rank: int, life: int, kind: int) -> tuple[OpenCall[T], int] | None:
        """Take an answer of this kind. Return the call and the kind with which it ends; None if it waits no more."""
        call = self._state.answered(key, rank, life)
        return None if call is None else (call, UNCERTAIN if kind == LOST and call.once else kind)

    def _close(self, call: OpenCall[T]) -> None:
        """Close a call that is answered or given up. Its rank cancels a call that is given up."""
        if self._state.close(call.key) is None:
            return
        if call.sent_to >= 0:
            self._gives_up(call)
        self._leave()

    def _lose(self, calls: Iterable[OpenCall[T]]) -> None:
        for call in calls:
            self._has_lost(call, UNCERTAIN if call.uncertain else LOST)


class CalleeEnd(ABC, Generic[Q, T]):
    """The calls that one rank answers. `Q` is a request, and `T` an answer."""

    def __init__(
        self,
        callers: Mapping[str, int],
        services: Mapping[str, ServiceSpec],
        life: int,
        snapshots: SnapshotPlan,
        max_bytes: int,
    ) -> None:
        """`callers`: the world sizes of the roles that may call. `life`: this rank's generation."""
        self._callers = [RankRef(role, rank) for role, size in callers.items() for rank in range(size)]
        self._own_life = life
        self._state: CalleeState[Q, T] = CalleeState(
            self._callers,
            {name: spec.concurrency for name, spec in services.items()},
            keeps=snapshots.enabled,
            every=snapshots.every,
            max_bytes=max_bytes,
            once=frozenset(name for name, spec in services.items() if not spec.repeatable),
        )

    # ------------------------------------------------------------------------------------- what carries decisions out

    @abstractmethod
    def _life(self, rank: RankRef) -> int:
        """Return the newest life of a rank whose address is known; -1 if there is none."""

    @abstractmethod
    def _wanted(self, request: Q) -> int:
        """Return the only life that may run the request; -1 for any."""

    @abstractmethod
    def _refuse(self, known: Known[Q, T]) -> None:
        """Answer `LOST`."""

    @abstractmethod
    def _cancel(self, known: Known[Q, T]) -> None:
        """Cancel a call that its caller has given up, if it runs."""

    @abstractmethod
    def _send(self, known: Known[Q, T]) -> None:
        """Send the answer."""

    # ----------------------------------------------------------------------------------------------------------- news

    def rewire(self) -> None:
        """Send waiting answers to callers that have a new address."""
        for caller in self._callers:
            for known in self._state.met(caller, self._life(caller)):
                self._send(known)

    def resized(self, sizes: Mapping[str, int]) -> None:
        """Handle roles that have other ranks now, whose addresses follow."""
        for role in [role for role in dict.fromkeys(caller.role for caller in self._callers) if role in sizes]:
            self._state.resized(role, sizes[role])
            others = [caller for caller in self._callers if caller.role != role]
            self._callers = others + [RankRef(role, rank) for rank in range(sizes[role])]

    def committed(self, step: int) -> None:
        """Note that no rank goes back to a step before this one."""
        self._state.committed(step)

    def has_finished(self, caller: RankRef, generation: int, step: int) -> None:
        """Note that a caller has finished `step`."""
        for known in self._state.has_finished(caller, generation, step):
            self._cancel(known)

    # ---------------------------------------------------------------------------------------------------------- calls

    def _take(
        self, caller: RankRef, generation: int, key: bytes, step: int, until: int, method: str, request: Q
    ) -> None:
        """Take a call. Send the answer again if there is one."""
        if (known := self._state.asked(caller, generation, key, step, until, method, request)) is not None:
            self._send(known)

    def _given_up(self, caller: RankRef, generation: int, key: bytes) -> None:
        """Note that a caller has given up a call."""
        if (known := self._state.gives_up(caller, generation, key)) is not None:
            self._cancel(known)

    def _next(self) -> Known[Q, T] | None:
        """Return a call to run now, or None. Refuse those that another life was to run."""
        while (known := self._state.begins()) is not None:
            assert known.request is not None
            if self._wanted(known.request) in (-1, self._own_life):
                return known
            self._refuse(known)
        return None

    def _ends(self, known: Known[Q, T], answer: T, nbytes: int) -> None:
        """Note the answer of a call, and send it if its caller waits."""
        if self._state.done(known, answer, nbytes):
            self._send(known)
