"""The part of an extension that runs in a rank: hooks that the rank calls at fixed points of its life."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rolemesh.graph.logical import OpCall
from rolemesh_durable.protocol.extension_message import ExtensionMessage, Sealed
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.protocol.rank.span import Span

__all__ = ["RankExtension", "RankHooks", "overriding"]


class RankExtension:
    """An extension in one rank. It overrides the hooks that it needs; the others cost nothing.

    The rank calls the hooks from its main thread, those of one name in the order in which the extensions are
    registered. An extension must do the same in each life of the rank, or write down what it has decided.
    """

    postpones_snapshots: bool = True
    """False: the rank takes each snapshot at its step, never later."""
    messages: ClassVar[tuple[type[ExtensionMessage], ...]] = ()
    """The messages of the extension's part in the master, for `heard`."""

    # ---------------------------------------------------------------------------------------- before the first step

    def wrap(self, op: OpCall, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that the rank runs as operator call `op`: `method`, or a wrapper of it."""
        return method

    def remember(self) -> None:
        """The rank is restored from memory, and its send log holds the decisions of its former lives."""

    def opened(self, resume: int) -> None:
        """The rank is restored to step `resume` (-1: the beginning), and its edges are open."""

    def before_repeat(self, op: OpCall, resume: int) -> None:
        """The rank repeats `op` once, to restore a workload without state to step `resume`."""

    def may_yield_nothing(self, op: OpCall) -> bool:
        """Return True if the call, which yields its result in chunks, may yield none."""
        return False

    # ------------------------------------------------------------------------------------------------- in each step

    def before_step(self, step: int) -> None:
        """The next step is `step`. The rank may have to wait for its grant."""

    def before_inputs(self, op: OpCall, step: int) -> None:
        """The next call is `op`. The rank has not waited for its inputs."""

    def before_call(self, op: OpCall, step: int) -> None:
        """The inputs of `op` are there, and the operator begins next. The hook may wait."""

    def step_done(self, step: int, held: bool) -> None:
        """All operators of `step` are done, and the snapshot follows. `held`: the rank stops after this step."""

    def before_snapshot(self) -> None:
        """The rank asks its workload for its state next."""

    # -------------------------------------------------------------------------------------------- while it waits

    def idle(self) -> bool:
        """Called before the rank waits. Return True if it should wait at most 50 ms before the next call."""
        return False

    def wait(self, wait_ms: int) -> bool:
        """Wait for messages instead of the rank, at most `wait_ms`; return False to leave the wait to the rank."""
        return False

    # ------------------------------------------------------------------------------------------- where time went

    def spent(self, span: Span) -> None:
        """An operator, a wait or a snapshot has ended that took `LONG_NS` or longer. The hook must return at once."""

    # ---------------------------------------------------------------------------------- what the workload reports

    def measured(self, values: Mapping[str, float], item: int | None) -> None:
        """The workload has reported quantities to average (`RankContext.metric`), for `item` or outside of items.

        The hook runs inside the workload's call, in its thread. So its exception fails the operator there.
        """

    # -------------------------------------------------------------------------------------------- news of the job

    def rewired(self) -> None:
        """Peers have new addresses."""

    def relaid(self, sizes: Mapping[str, int]) -> None:
        """The roles in `sizes` have that many ranks from now on. None of them is up."""

    def advanced(self, advance: Watermarks) -> None:
        """The master has sent the progress of the job."""

    def heard(self, message: ExtensionMessage) -> None:
        """The extension's part in the master has sent a new message, one of `messages`.

        The newest message of a class comes once `opened` has been called, at least once. Earlier ones may never come.
        """

    # -------------------------------------------------------------------------------------------------- at the end

    def steps_end(self, finished: int) -> None:
        """The rank has finished its last step, `finished`.

        It still waits until consumers have received their values.
        """

    def ended(self) -> None:
        """The rank has its last state. It runs nothing of its workload but the teardown."""

    def close(self) -> None:
        """Release everything. The rank may call it twice."""


class RankHooks:
    """The hooks of a rank's extensions: for each one the bound methods that override it, in order."""

    def __init__(self, parts: Sequence[RankExtension] = ()) -> None:
        self.parts = tuple(parts)
        self.remember = overriding(RankExtension, parts, "remember")
        self.opened = overriding(RankExtension, parts, "opened")
        self.before_repeat = overriding(RankExtension, parts, "before_repeat")
        self.before_step = overriding(RankExtension, parts, "before_step")
        self.before_inputs = overriding(RankExtension, parts, "before_inputs")
        self.before_call = overriding(RankExtension, parts, "before_call")
        self.step_done = overriding(RankExtension, parts, "step_done")
        self.before_snapshot = overriding(RankExtension, parts, "before_snapshot")
        self.idle = overriding(RankExtension, parts, "idle")
        self.wait = overriding(RankExtension, parts, "wait")
        self.spent = overriding(RankExtension, parts, "spent")
        self.measured = overriding(RankExtension, parts, "measured")
        self.rewired = overriding(RankExtension, parts, "rewired")
        self.relaid = overriding(RankExtension, parts, "relaid")
        self.advanced = overriding(RankExtension, parts, "advanced")
        self.steps_end = overriding(RankExtension, parts, "steps_end")
        self.ended = overriding(RankExtension, parts, "ended")
        self.close = overriding(RankExtension, parts, "close")
        self.heard = {kind.name(): (kind, part.heard) for part in parts for kind in part.messages}
        self.postpone_snapshots = all(part.postpones_snapshots for part in parts)

    def may_yield_nothing(self, op: OpCall) -> bool:
        """Return True if an extension says that the call may yield nothing."""
        return any(part.may_yield_nothing(op) for part in self.parts)

    def hear(self, messages: Iterable[Sealed]) -> None:
        """Pass messages of the master on to the parts that take them."""
        for sealed in messages:
            if sealed.name in self.heard:
                kind, heard = self.heard[sealed.name]
                heard(sealed.opened(kind))

    def wrapped(self, op: OpCall, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return `method` as all extensions wrap it: the first one is the innermost."""
        for part in self.parts:
            method = part.wrap(op, method)
        return method


def overriding(contract: type[Any], parts: Sequence[object], hook: str) -> tuple[Callable[..., Any], ...]:
    """Return the bound methods `hook` of those `parts` whose class overrides the one of `contract`, in order."""
    default = getattr(contract, hook)
    return tuple(getattr(part, hook) for part in parts if getattr(type(part), hook) is not default)
