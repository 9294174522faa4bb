"""`RankContext`: the facts that a rank has about itself, and its requests to the engine."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rolemesh.api.port import LocalPort, RankPort, T
from rolemesh.api.rank_ref import RankRef
from rolemesh.api.service import CalledBy

__all__ = ["RankContext", "Rendezvous", "stable_seed"]


class Rendezvous(msgspec.Struct, frozen=True):
    """The meeting point of a collective group: rank 0 listens at address:port, the others connect.

    `generation` grows by one each time the group restarts; use it as a key prefix. Pass `listen_fd`
    to ``torch.distributed.TCPStore(..., master_listen_fd=listen_fd)``: the port is bound already,
    so no other process can take it.
    """

    address: str
    port: int
    generation: int
    listen_fd: int | None = None


@dataclass(kw_only=True, eq=False)
class RankContext:
    """The facts that a rank has about itself, and its requests to the engine.

    Read `step` inside an operator; the other attributes are constant for the rank's life. In a test
    give what the workload reads; `port.means`, `port.sums` and `port.records` then
    have what it reported.
    """

    options: Any = None
    """As the workload's `options`, for workloads written before these."""
    job: str = "job"
    role: str = "role"
    rank: int = 0
    world_size: int = 1
    """Number of ranks of the role."""
    local_rank: int = 0
    local_world_size: int = 1
    """Number of ranks of the role on this node."""
    node: str = "local"
    seed: int = 0
    """The job's seed; see `seed_for`."""
    steps: int | None = 1
    """Number of steps of the job; None for a job without an end."""
    gpus: Sequence[int] = ()
    """Device indices as the rank sees them: 0, 1, ... within its ``CUDA_VISIBLE_DEVICES``."""
    cpus: float = 1.0
    """CPU cores reserved for this rank. The reservation is not enforced."""
    memory_gb: float = 0.0
    """Memory reserved for this rank in 10^9 bytes, 0 if not requested. Not enforced either."""
    share: float = 1.0
    """Share of its devices meant for this rank where other ranks use them at the same time; 0 to
    1."""
    turns: bool = False
    """True if ranks of other roles use the same devices in turns with this one: see
    `Workload.offload`."""
    peers: Sequence[RankRef] = ()
    """Ranks of other roles that the placement strategy put near this one on purpose."""
    rendezvous: Rendezvous | None = None
    """The meeting point of a collective group; None in other groups."""
    generation: int = 0
    """Number of times that this rank has restarted."""
    run_dir: Path = Path()
    """`runs/<name>` of the job. Unless it is shared, it may be on another node's disk."""
    tmp_dir: Path = Path()
    """A folder of the job on this node, removed when the job ends."""
    base: Path = Path()
    """The job file's folder; relative paths in options refer to it."""
    plugins: Mapping[tuple[str, str], Callable[[], Any]] = field(default_factory=dict)
    """Factories of the plugins that the job file lists under ``plugins``, by kind and name;
    ``name#2`` is the second of a name."""
    port: RankPort = field(default_factory=LocalPort)
    """The engine's side; a workload uses the methods of this class."""
    step: int = 0
    """The step of the operator that is running, from 0."""
    log: logging.Logger = field(init=False)
    """The rank's logger; its lines go to the rank's log file."""

    # For workloads with ``RankContext[Options]`` in annotations that Python evaluates.
    __class_getitem__ = classmethod(lambda cls, _: cls)

    def __post_init__(self) -> None:
        self.log = logging.getLogger(str(RankRef(self.role, self.rank)))
        self._warnings = 0
        self._item: ContextVar[int | None] = ContextVar("item", default=None)
        self._called_by: ContextVar[CalledBy | None] = ContextVar("called_by", default=None)

    @property
    def notes(self) -> MutableMapping[str, Any]:
        """Decisions of this step that would come out differently another time, as JSON values: the
        records read from a broker, the time of a clock.

        The engine stores them before any consumer sees the results. They are empty, unless an
        earlier life of the rank ran this step: then repeat the noted decisions.
        """
        return self.port.notes

    @property
    def item(self) -> int:
        """Number of the item that an operator with a `Balanced` input has in hand, from 0. For
        seeds: ``ctx.rng(ctx.step, ctx.item)``."""
        return self._item.get() or 0

    @property
    def called_by(self) -> CalledBy | None:
        """In a service the caller: its role, rank and step, and the session. None in an operator.

        A session that several callers share has the same name for all of them.
        """
        return self._called_by.get()

    def with_item(self, number: int) -> AbstractContextManager[None]:
        """For engines: item `number` is in hand inside, tasks that begin there included."""
        return _within(self._item, number)

    def serving(self, by: CalledBy) -> AbstractContextManager[None]:
        """For engines: a service that `by` calls runs inside, tasks that begin there included."""
        return _within(self._called_by, by)

    def mine(self, n: int) -> range:
        """This rank's share of the rows 0 to `n` - 1: those from ``n * rank // world_size`` up to,
        not including, ``n * (rank + 1) // world_size``.

        The shares of all ranks are disjoint, in the order of the ranks, and together all rows.
        Their lengths differ by at most 1; with fewer rows than ranks, some are empty.
        """
        return range(n * self.rank // self.world_size, n * (self.rank + 1) // self.world_size)

    def lend(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """Return numpy arrays or CPU tensors with the same names and contents, in memory that
        consumers on this node read in place: each copies once, into its own tensors.

        Return them from operators, whole or in rows. Lend together what you send together. Change
        them in operators only, not in services or threads: before the next operator they get other
        memory behind the same addresses, if a consumer may still need what was sent. They are
        the arrays given if the engine cannot lend.
        """
        return self.port.lend(tensors)

    def metric(self, /, **values: float) -> None:
        """Report quantities (loss, reward) to average over calls, ranks and steps."""
        self.port.metric(_text(values), self._item.get())

    def count(self, /, **values: float) -> None:
        """Report quantities (tokens, samples) to add up over calls and ranks within each step."""
        self.port.count(_text(values), self._item.get())

    def record(self, /, **values: Any) -> None:
        """Attach JSON values (example answers, tables) to the step's line in ``metrics.jsonl``.

        Half of a surrogate pair becomes its escape, such as ``\\ud800``, as in names of metrics.
        Raises `TypeError` for a value that JSON cannot express.
        """
        for name, value in values.items():
            try:
                msgspec.msgpack.encode(value)
            except UnicodeEncodeError:
                values[name] = _text(msgspec.to_builtins(value))
            except (TypeError, OverflowError, RecursionError) as error:
                raise TypeError(f"record {name!r} is no JSON value: {error}") from None
        self.port.record({_text(name): value for name, value in values.items()})

    def warn(self, text: str) -> None:
        """Warn the user of something that is probably unintended. Observers show the text, and the
        job goes on.

        The warning is a record of the step: ``warning <role>/<rank> #<number>``. Give it once, not
        in every step.
        """
        self._warnings += 1
        self.record(**{f"warning {self.role}/{self.rank} #{self._warnings}": text})

    def finish(self, reason: str = "") -> None:
        """End the job in good order: all ranks go on to one step that none has passed, and stop
        after it.

        Operators run until then, those of this rank included. Further calls change nothing.
        """
        self.port.finish(_text(reason) or "it called finish()")

    def progress(self, done: int, total: int = 0) -> bool:
        """Show how far a long operator is: `done` of `total` (0: unknown).

        An operator that keeps reporting progress is never treated as hung. Returns True if the job
        is draining to a step; operators that wait for an external source should then return what
        they have.
        """
        return self.port.progress(int(done), int(total))

    def wait_for_callers(self) -> None:
        """In a ``def`` operator of a role with services: answer calls until all callers have
        finished this step. The callers must not need the operator's result for that.

        Returns at once if the call of the operator repeats one of an earlier life.
        """
        self.port.wait_for_callers()

    async def call(
        self, role: str, method: str, *args: Any, session: str = "", timeout: float | None = None
    ) -> Any:
        """Call a `@service` method of a rank of `role` from an ``async def`` operator, and return
        its result.

        The flow must list the role: ``calls=[job.<role>]``. Arguments and results travel as values
        on edges do, and are valid until the operator ends. `timeout` (seconds) replaces that of the
        service. Raises `CallError` with the remote traceback for an exception in the service,
        `CallTimeoutError`, `SessionLostError`, and, if the service is not repeatable,
        `CallUncertainError`.
        """
        return await self.port.call(role, method, args, session, timeout)

    def call_and_wait(
        self, role: str, method: str, *args: Any, session: str = "", timeout: float | None = None
    ) -> Any:
        """As `call`, from a ``def`` operator."""
        return self.port.call_and_wait(role, method, args, session, timeout)

    def session(self, role: str) -> str:
        """Begin a new session with a rank of `role`, and return its name for `call`.

        All calls of a session go to one rank, in its present life. A restarted rank that repeats
        the step receives the same name, also if that rank has died since.
        """
        return self.port.session(role)

    def seed_for(self, *keys: object) -> int:
        """A seed in [0, 2**63) from the job's seed and `keys`, the same in every process and Python
        version.

        Derive seeds from rows and steps, not from ranks: then results do not depend on which rank
        does the work.
        """
        return stable_seed(self.seed, *keys)

    def rng(self, *keys: object) -> np.random.Generator:
        """A numpy generator seeded with `seed_for(*keys)`."""
        return np.random.default_rng(self.seed_for(*keys))


def _text(value: Any) -> Any:
    """Return `value` with escapes for halves of surrogate pairs, which UTF-8 cannot express."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_text(name): _text(each) for name, each in value.items()}
    return [*map(_text, value)] if isinstance(value, list | tuple) else value


@contextmanager
def _within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    before = variable.get()
    variable.set(value)
    try:
        yield
    finally:
        variable.set(before)


def stable_seed(seed: int, *keys: object) -> int:
    """The blake2b hash of the keys' reprs, in [0, 2**63): unlike `hash`, equal in every process."""
    digest = hashlib.blake2b(repr((seed, *keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
