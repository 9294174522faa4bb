"""What a role runs: `Workload`, its operators, and the context that a rank hands it.

This module is the whole API of a workload plugin, with `rolemesh.api.batch` and `rolemesh.api.partition`. A workload is
imported in the driver to trace the flow, so its module must stay light: torch, vllm and the like are imported in
`Workload.setup`, which runs in the rank.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
from pydantic import BaseModel

from rolemesh.api.partition import Partition, Split

__all__ = [
    "WORKLOAD_API_VERSION",
    "NoOptions",
    "OperatorSpec",
    "RankContext",
    "Rendezvous",
    "State",
    "Workload",
    "operator",
    "operator_spec",
    "stable_seed",
]

WORKLOAD_API_VERSION = 1

State: TypeAlias = Mapping[str, Any]
"""A rank's state by name: numpy arrays, torch tensors (DTensors give their local block), bytes, JSON values."""

O = TypeVar("O", bound=BaseModel)  # noqa: E741
F = TypeVar("F", bound=Callable[..., Any])


class NoOptions(BaseModel, extra="forbid"):
    """A workload without options."""


class OperatorSpec(msgspec.Struct, frozen=True):
    """An operator as the flow sees it.

    `inputs` maps each parameter to its partition, in the order of the signature; `required` are those without a
    default. `streaming`: every edge input arrives as an iterator over chunks instead of one whole value.
    """

    name: str
    inputs: dict[str, Partition]
    required: tuple[str, ...]
    returns: Partition | None
    streaming: bool = False
    doc: str = ""


def operator(*, returns: Partition | None = None, streaming: bool = False, **inputs: Partition) -> Callable[[F], F]:
    """Declare a method as an operator: a partition per parameter, and that of what it returns (None: nothing).

    A generator function yields chunks. With `streaming`, each edge input is an iterator over the producer's chunks.
    """

    def mark(function: F) -> F:
        function.__rolemesh_operator__ = operator_spec(  # type: ignore[attr-defined]
            function, inputs=inputs, returns=returns, streaming=streaming
        )
        return function

    return mark


def operator_spec(
    function: Callable[..., Any],
    *,
    inputs: Mapping[str, Partition] | None = None,
    returns: Partition | None = None,
    streaming: bool = False,
    default: Partition | None = None,
) -> OperatorSpec:
    """The spec of a function with declared partitions; `default` stands in for parameters without one.

    Raises `TypeError` for a partition of an unknown parameter and, without `default`, for a missing one.
    """
    parameters = [p for name, p in inspect.signature(function).parameters.items() if name != "self"]
    declared = dict(inputs or {})
    known = {p.name for p in parameters}
    name = getattr(function, "__name__", "operator")
    if unknown := declared.keys() - known:
        raise TypeError(f"operator {name!r}: partition for {sorted(unknown)}, which are not parameters {sorted(known)}")
    result: dict[str, Partition] = {}
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise TypeError(f"operator {name!r}: *{p.name} cannot be an edge; name each input")
        partition = declared.get(p.name, default)
        if partition is None and p.default is p.empty:
            raise TypeError(f"operator {name!r}: parameter {p.name!r} needs a partition, e.g. {p.name}=Split()")
        result[p.name] = partition if partition is not None else Split()
    required = tuple(p.name for p in parameters if p.default is p.empty)
    doc = inspect.getdoc(function) or ""
    return OperatorSpec(name, result, required, returns, streaming, doc)


class Rendezvous(msgspec.Struct, frozen=True):
    """Where a collective group meets: rank 0 listens on `listen_fd` at address:port, the others connect.

    `generation` grows by one each time the group is started again; use it as a key prefix. Pass `listen_fd` to
    ``torch.distributed.TCPStore(..., master_listen_fd=listen_fd)``: the port is bound already, so nobody can take it.
    """

    address: str
    port: int
    generation: int
    listen_fd: int | None = None


class RankContext(Generic[O]):
    """What a rank knows about itself. Read `step` inside an operator; the rest is constant for the rank's life."""

    def __init__(
        self,
        *,
        options: O,
        job: str = "job",
        role: str = "role",
        rank: int = 0,
        world_size: int = 1,
        local_rank: int = 0,
        local_world_size: int = 1,
        node: str = "local",
        seed: int = 0,
        steps: int = 1,
        gpus: Sequence[int] = (),
        cpus: float = 1.0,
        share: float = 1.0,
        turns: bool = False,
        peers: Sequence[tuple[str, int]] = (),
        rendezvous: Rendezvous | None = None,
        generation: int = 0,
        run_dir: str | Path = ".",
        tmp_dir: str | Path | None = None,
        base: str | Path = ".",
    ) -> None:
        self.options = options
        self.job = job
        self.role = role
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.local_world_size = local_world_size
        self.node = node
        self.seed = seed
        self.steps = steps
        self.gpus = tuple(gpus)
        """Device indices as the rank sees them: 0, 1, ... within its ``CUDA_VISIBLE_DEVICES``."""
        self.cpus = cpus
        self.share = share
        """The part of the devices that is meant for this rank, where others run on them at the same time; 0 to 1."""
        self.turns = turns
        """Whether ranks of other roles use the same devices in turns with this one: see `Workload.offload`."""
        self.peers = tuple(peers)
        """Ranks of other roles, (role, rank), that the placement strategy has put near this one for a purpose."""
        self.rendezvous = rendezvous
        self.generation = generation
        self.run_dir = Path(run_dir)
        """`runs/<name>` of the job; may be on another node's disk unless it is shared."""
        self.tmp_dir = Path(tmp_dir) if tmp_dir is not None else self.run_dir
        """A folder of the job on this node, removed when the job ends."""
        self.base = Path(base)
        """The job file's folder, to which relative paths in options refer."""
        self.step = 0
        """The step of the operator that is running, from 0."""
        self.log = logging.getLogger(f"{role}/{rank}")
        self._means: dict[str, list[float]] = {}
        self._sums: dict[str, float] = {}
        self._records: dict[str, Any] = {}

    def metric(self, **values: float) -> None:
        """Report quantities that are averaged over the calls, ranks and steps they come from (loss, reward)."""
        for name, value in values.items():
            slot = self._means.setdefault(name, [0.0, 0.0])
            slot[0] += float(value)
            slot[1] += 1.0

    def count(self, **values: float) -> None:
        """Report quantities that are added up over calls, ranks and steps (tokens, samples)."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def record(self, **values: Any) -> None:
        """Attach JSON values to the step's line in ``metrics.jsonl`` (example answers, tables).

        Raises `TypeError` for what JSON cannot say.
        """
        for name, value in values.items():
            try:
                msgspec.msgpack.encode(value)
            except (TypeError, OverflowError, RecursionError) as error:
                raise TypeError(f"record {name!r} is no JSON value: {error}") from None
            self._records[name] = value

    def seed_for(self, *keys: object) -> int:
        """A seed in [0, 2**63) from the job's seed and `keys`, the same in every process and Python version.

        Seeds should belong to rows and steps, not to ranks, so that results do not depend on who did the work.
        """
        return stable_seed(self.seed, *keys)

    def rng(self, *keys: object) -> np.random.Generator:
        """A numpy generator seeded with `seed_for(*keys)`."""
        return np.random.default_rng(self.seed_for(*keys))


class Workload:
    """Base class of every role's code. One instance per rank; a restarted rank gets a new one.

    Life: ``setup(ctx)`` → (``restore(state)``) → operators, step by step → ``snapshot()`` at boundaries →
    ``teardown()``. Where roles take turns on the same devices, ``offload()`` and ``onload()`` come between operators.
    Class attributes declare what the kernel must know before the process exists.
    """

    Options: ClassVar[type[BaseModel]] = NoOptions
    api_version: ClassVar[int] = WORKLOAD_API_VERSION
    group: ClassVar[Literal["independent", "collective"]] = "independent"
    """collective: ranks talk to each other inside operators, so they get a rendezvous and live and die together."""
    deterministic: ClassVar[bool] = False
    """True: state after a step depends only on state, inputs, options and seed, bit for bit."""
    preload: ClassVar[Sequence[str]] = ()
    """Modules that the zygote imports before it forks ranks. They must start no thread and touch no GPU."""
    env: ClassVar[Mapping[str, str]] = {}
    """Environment variables set before the preloads are imported."""

    @classmethod
    def operators(cls, options: Any) -> Mapping[str, OperatorSpec]:
        """The operators that the flow may call; by default the methods marked with `@operator`.

        A workload whose operators depend on its options (such as the built-in ``function``) overrides this.
        """
        found: dict[str, OperatorSpec] = {}
        for name in dir(cls):
            spec = getattr(inspect.getattr_static(cls, name), "__rolemesh_operator__", None)
            if spec is not None:
                found[name] = spec
        return found

    @classmethod
    def stateful(cls, options: Any) -> bool:
        """Whether ranks keep state from step to step that `snapshot` gives; by default, whether it is overridden.

        A stateless rank is brought back by replay: its last call of each operator that returns nothing (such as one
        that loads weights) is repeated with the same input, before it goes on. So an operator that returns something
        must not change what a later call returns.
        """
        return cls.snapshot is not Workload.snapshot

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """Look at the options in the driver, before anything starts: files that must exist, sizes that must fit.

        Raise `rolemesh.OptionsError` with a remedy. Import nothing heavy here.
        """

    @classmethod
    def export(cls, options: Any, state: State, folder: Path) -> None:
        """Write a persisted state into the new `folder` in the form that other tools read, for `checkpoint export`.

        `state` is that of all ranks together: each `Shard` has become the whole tensor, and entries in which the ranks
        differ are left out. Raise `rolemesh.OptionsError` with a remedy if it cannot be done.
        """
        raise NotImplementedError(f"{cls.__name__} has no export()")

    def setup(self, ctx: RankContext[Any]) -> None:
        """Build models, engines, iterators. Heavy imports belong here."""

    def snapshot(self) -> State | None:
        """The rank's whole state between two steps, or None if it has none (it is then restored by replay)."""
        return None

    def restore(self, state: State) -> None:
        """Take the state of `snapshot` back, after `setup`, in a new process."""
        raise NotImplementedError(f"{type(self).__name__} gives snapshots but has no restore()")

    def offload(self) -> None:
        """Give device memory back: another role's turn has come on the same devices.

        Called only where the placement lets roles take turns (`RankContext.turns`), between operators. Nothing but
        `onload` and `teardown` is called until it is this rank's turn again. By default everything stays where it is.
        """

    def onload(self) -> None:
        """Take device memory again, so that operators find everything as it was before `offload`."""

    def teardown(self) -> None:
        """Release what the end of the process would not: child processes, files, remote sessions."""


def stable_seed(seed: int, *keys: object) -> int:
    """blake2b of the keys' reprs: unlike `hash`, equal in every process."""
    digest = hashlib.blake2b(repr((seed, *keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
