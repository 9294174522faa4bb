"""`Workload`, the code of a role, with its operators and its context.

This module is the whole API of a workload plugin, with `rolemesh.api.batch` and
`rolemesh.api.partition`. A workload is imported in the driver to trace the flow, so its module must
stay light: torch, vllm and the like are imported in `Workload.setup`, which runs in the rank.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

import msgspec

from rolemesh.api.context import RankContext, Rendezvous, stable_seed
from rolemesh.api.partition import Balanced, Broadcast, Partition, Split, Streaming
from rolemesh.api.plugin import Plugin
from rolemesh.api.service import ServiceSpec, marked, services_of
from rolemesh.errors import OptionsError

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = [
    "OperatorSpec",
    "RankContext",
    "Rendezvous",
    "State",
    "Workload",
    "operator",
    "operator_spec",
    "stable_seed",
]

State: TypeAlias = Mapping[str, Any]
"""A rank's state by name: numpy arrays, torch tensors (DTensors give their local block), bytes,
JSON values."""

F = TypeVar("F", bound=Callable[..., Any])
ERRORS = ("fail", "drop")


class OperatorSpec(msgspec.Struct, frozen=True):
    """An operator as the flow sees it.

    `inputs` maps each parameter to its partition, in the order of the signature; `required` are
    those without a default. `streaming`: every edge input arrives as an iterator over chunks
    instead of one whole value.
    """

    name: str
    inputs: dict[str, Partition]
    required: tuple[str, ...]
    returns: Partition | None
    streaming: Streaming = False
    doc: str = ""


def operator(
    *bare: Any, returns: Partition | None = None, streaming: Streaming = False, **inputs: Partition
) -> Callable[[F], F]:
    """Declare a method as an operator: the partition of each parameter, and of the result (None: no
    result).

    A generator function yields chunks. With `streaming`, each input from an edge is an iterator
    over the producers' chunks, one of each rank in turn. With ``"arrival"`` the chunks come in the
    order in which they arrive, so a slow rank does not delay the others. An ``async def`` method
    runs to its end before the rank's next operator starts; it may have many calls under way. Raises
    `TypeError` without parentheses (`bare`): partitions have no default.
    """
    if bare:
        raise TypeError("write @operator(), or with each input's partition: @operator(x=Split())")

    def mark(function: F) -> F:
        spec = operator_spec(function, inputs=inputs, returns=returns, streaming=streaming)
        function.__rolemesh_operator__ = spec  # type: ignore[attr-defined]
        return function

    return mark


def operator_spec(
    function: Callable[..., Any],
    *,
    inputs: Mapping[str, Partition] | None = None,
    returns: Partition | None = None,
    streaming: Streaming = False,
    default: Partition | None = None,
    fixed: Collection[str] = ("self",),
) -> OperatorSpec:
    """Return the spec of a function with declared partitions. Parameters without a partition get
    `default`; `fixed` parameters are not inputs.

    Raises `TypeError` for a partition of an unknown parameter and, without `default`, for a missing
    one.
    """
    if inspect.isasyncgenfunction(function):
        raise TypeError(
            f"operator {function.__name__!r} is an asynchronous generator; return the whole value"
        )
    parameters = [
        p for name, p in inspect.signature(function).parameters.items() if name not in fixed
    ]
    declared = dict(inputs or {})
    known = {p.name for p in parameters}
    name = getattr(function, "__name__", "operator")
    if unknown := declared.keys() - known:
        raise TypeError(
            f"operator {name!r}: partition for {sorted(unknown)}, which are not parameters "
            f"{sorted(known)}"
        )
    result: dict[str, Partition] = {}
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise TypeError(f"operator {name!r}: *{p.name} cannot be an edge; name each input")
        partition = declared.get(p.name, default)
        if partition is None and p.default is p.empty:
            raise TypeError(
                f"operator {name!r}: parameter {p.name!r} needs a partition, e.g. {p.name}=Split()"
            )
        result[p.name] = partition if partition is not None else Split()
    returns = _balanced(function, result, returns, streaming)
    required = tuple(p.name for p in parameters if p.default is p.empty)
    return OperatorSpec(name, result, required, returns, streaming, inspect.getdoc(function) or "")


def _balanced(
    function: Callable[..., Any],
    inputs: Mapping[str, Partition],
    returns: Partition | None,
    streaming: Streaming,
) -> Partition | None:
    """Return the partition of the result of `function`: if it has a balanced input, the items that
    each rank processed.

    Raises `TypeError` for a combination that such an operator cannot have.
    """
    found = [
        (param, partition) for param, partition in inputs.items() if isinstance(partition, Balanced)
    ]
    name = getattr(function, "__name__", "operator")
    if not found:
        if isinstance(returns, Balanced):
            raise TypeError(
                f"operator {name!r} returns Balanced(), but has no such input; declare "
                "returns=Split()"
            )
        return returns
    param, shared = found[0]
    others = [p for p, each in inputs.items() if p != param and not isinstance(each, Broadcast)]
    wrong = ""
    if others:
        wrong = f"{others[0]!r} goes with one balanced input only as Broadcast()"
    elif returns not in (Split(), shared):
        wrong = "declare returns=Split(): rows for each row of the item"
    elif streaming or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        wrong = "it takes items whole, and returns them whole"
    elif min(shared.rows, shared.concurrency, shared.results) < 1 or shared.on_error not in ERRORS:
        wrong = "rows, concurrency and results are at least 1, on_error is 'fail' or 'drop'"
    elif shared.concurrency > 1 and not inspect.iscoroutinefunction(function):
        wrong = f"concurrency={shared.concurrency} needs an async def"
    if wrong:
        raise TypeError(f"operator {name!r} shares out {param!r}: {wrong}")
    return shared


class Workload(Plugin):
    """Base class of every role's code. One instance per rank; a restarted rank gets a new one.

    Life: ``setup(ctx)`` → (``restore(state)``) → operators, step by step → ``snapshot()`` at
    boundaries → ``teardown()``. Roles that take turns on the same devices get ``offload()``
    and ``onload()`` between operators. Class attributes declare facts that the kernel needs before
    the process exists. The hooks are specified in `rolemesh.hookspecs`.
    """

    group: ClassVar[Literal["independent", "collective"]] = "independent"
    """collective: the ranks communicate inside operators. They get a rendezvous, and the engine
    restarts them together."""
    deterministic: ClassVar[bool] = False
    """True: state after a step depends only on state, inputs, options and seed, bit for bit."""
    lockstep: ClassVar[bool] = True
    """True: all ranks of a collective group begin an operator together. False: each rank begins it
    when it gets there."""
    own_signals: ClassVar[bool] = False
    """True: the ranks' own code handles signals. When the job stops, the agent sends all of them
    the signal at once, and they have the whole ``stop_grace_s``; before a recovery starts a rank
    again, SIGTERM and the same time. False: only a rank that takes longer than half of it gets
    SIGTERM, and only when the job stops."""
    preload: ClassVar[Sequence[str]] = ()
    """Modules that the zygote imports before it forks ranks. They must not start threads or use a
    GPU."""
    env: ClassVar[Mapping[str, str]] = {}
    """Environment variables set before the preloads are imported."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)

    @classmethod
    def process(cls, options: Any) -> tuple[Sequence[str], Mapping[str, str]]:
        """Modules and variables of the zygote that ranks are forked from; by default `preload` and
        `env`.

        A workload in which they depend on its options overrides this.
        """
        return cls.preload, cls.env

    @classmethod
    def operators(cls, options: Any) -> Mapping[str, OperatorSpec]:
        """The operators that the flow may call; by default the methods marked with `@operator`.

        A workload whose operators depend on its options (such as the built-in ``function``)
        overrides this.
        """
        return marked(cls, "__rolemesh_operator__")

    @classmethod
    def services(cls, options: Any) -> Mapping[str, ServiceSpec]:
        """The methods that operators of other roles may call; by default those marked with
        `@service`."""
        return services_of(cls)

    @classmethod
    def stateful(cls, options: Any) -> bool:
        """True if ranks keep state from step to step that `snapshot` returns; by default, if the
        class overrides `snapshot`.

        The engine restores a stateless rank by replay: it repeats the last call of each operator
        that returns nothing (such as one that loads weights) with the same input. So an operator
        that returns a value must not change the result of a later call.
        """
        return cls.snapshot is not Workload.snapshot

    @classmethod
    def varies(cls, options: Any) -> bool:
        """True if a repeated call with the same input may return another value; by default, if the
        class is not `deterministic`. A restarted rank then never replaces values that were sent.
        """
        return not cls.deterministic

    @classmethod
    def repeats(cls, options: Any) -> bool:
        """True if the engine also repeats the last calls of a rank restored from a snapshot, as it
        does for a stateless rank. Data that an operator without result loads (weights) then need
        not be in the snapshot, and loading them must not change the snapshot's state.
        """
        return False

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """Check the options in the driver before the job starts: files that must exist, sizes that
        must fit.

        Raise `rolemesh.OptionsError` with a remedy. Import nothing heavy here. A check that needs
        the job file's folder or other plugins belongs in `check_flow`.
        """

    @classmethod
    def check_flow(cls, options: Any, role: str, job: CheckedJob) -> None:
        """Check the whole job before it starts: settings of `role` that must agree with those of
        other roles.

        Raise `rolemesh.OptionsError` as in `check`.
        """

    @classmethod
    def warnings(cls, options: Any, role: str, job: CheckedJob) -> Iterable[OptionsError]:
        """Yield warnings about settings that probably do not do what the user wants, such as one
        without effect.

        The arguments are those of `check_flow`, which has passed. ``rolemesh validate`` and the
        start of the job print each error as a warning.
        """
        return ()

    @classmethod
    def export(cls, options: Any, state: State, folder: Path) -> None:
        """Write a persisted state into the new `folder` in the form that other tools read, for
        `checkpoint export`.

        `state` is that of all ranks together: each `Shard` has become the whole tensor, and entries
        in which the ranks differ are left out. Raise `rolemesh.OptionsError` with a remedy if it
        cannot be done.
        """
        raise NotImplementedError(f"{cls.__name__} has no export()")

    def setup(self, ctx: RankContext) -> None:
        """Build models, engines and iterators; heavy imports belong here."""

    def snapshot(self) -> State | None:
        """Return the rank's whole state between two steps, or None if it has none.

        A rank without state is restored by replay: see `stateful`.
        """
        return None

    def restore(self, state: State) -> None:
        """Restore the state that `snapshot` returned, after `setup` in a new process."""
        raise NotImplementedError(f"{type(self).__name__} gives snapshots but has no restore()")

    def committed(self, step: int) -> None:
        """Note that every rank has `step` and all steps before in snapshots in memory, or has
        finished them where the job keeps no snapshots.

        Called between operators with strictly increasing steps; intermediate steps may be skipped.
        After a restart the sequence continues from the restored step. It decreases only when the
        whole job rolls back to a checkpoint on disk.
        """

    def persisted(self, step: int) -> None:
        """Note that the checkpoint of `step` is complete on disk, and acknowledge to brokers what
        was read up to that step.

        Called as `committed` is. The job never repeats a step up to this one.
        """

    def drain(self, left_s: float) -> None:
        """Release what belongs to this node, which goes away in `left_s` seconds (infinity if
        unknown).

        Called between two steps, before the last snapshot on this node; the rank then continues on
        another node. Not called when the node disappears without enough notice.
        """

    def offload(self) -> None:
        """Free device memory, because another role has its turn on the same devices.

        Called between operators, and only where the placement lets roles take turns
        (`RankContext.turns`). Until this rank's next turn only `onload` and `teardown` are called.
        By default the memory stays as it is.
        """

    def onload(self) -> None:
        """Take device memory again, so that operators find everything as it was before
        `offload`."""

    def verdict(self) -> str:
        """Return why the job has failed although every step is finished; "" if it has not.

        Called once in each rank's life, after its last step. The state after that step is kept as
        in any job.
        """
        return ""

    def teardown(self) -> None:
        """Release what the end of the process does not: child processes, files, remote sessions."""
