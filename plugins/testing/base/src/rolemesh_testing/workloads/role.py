"""A role with whole values: it splits them for the ranks, joins the results, and records every call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import msgspec

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.partition import Broadcast, Partial, Partition
from rolemesh.api.workload import OperatorSpec
from rolemesh.graph.routes import declared, describe, route
from rolemesh_runtime.items import assembled
from rolemesh_runtime.values import combine, select
from rolemesh_testing.workloads.items import shared_by
from rolemesh_testing.workloads.ranks import Ranks
from rolemesh_testing.workloads.wire import Returned, Shared, packed, unpacked

__all__ = ["Called", "Role", "cut", "joined"]


class Called(msgspec.Struct, frozen=True):
    """A recorded call: the packed arguments for each rank, and each rank's result."""

    step: int
    operator: str
    arguments: dict[int, dict[str, bytes]]
    streamed: tuple[str, ...]
    fingerprints: dict[int, str]
    written: dict[int, tuple[str, ...]]
    value: bytes | None
    """The joined value of all ranks, packed; None for an operator without a result."""
    shared: Shared | None = None
    """The operator's balanced input."""
    service: bool = False
    """True for a call of a service, of one rank, with packed ``arguments[rank]["arguments"]``."""
    session: str = ""

    def again(self, ranks: Ranks, on: Iterable[int]) -> dict[int, Returned]:
        """Repeat the call on the ranks `on`."""
        if self.service:
            (given,) = self.arguments.values()
            return ranks.ask(self.step, self.operator, dict.fromkeys(on, given["arguments"]), self.session)
        return ranks.call(self.step, self.operator, {r: self.arguments[r] for r in on}, self.streamed, self.shared)

    def __str__(self) -> str:
        return f"{self.operator}() at step {self.step}"


class Role:
    """The argument of `WorkloadConformance.step`: the operators as methods, which take and return whole values.

    `call_service` calls the workload's services. The operator's partitions decide how arguments are split for the ranks
    and how results are joined, along the same routes as in a job.
    """

    def __init__(
        self,
        ranks: Ranks,
        operators: Mapping[str, OperatorSpec],
        *,
        chunk_rows: int = 0,
        before: Callable[[int], None] | None = None,
        services: Mapping[str, Any] | None = None,
    ) -> None:
        """`chunk_rows` above 0 splits the inputs of streaming operators. The role calls `before(n)` before call n, from
        0.
        """
        self._ranks, self._operators = ranks, operators
        self._chunk_rows, self._before = chunk_rows, before
        self._services = dict(services or {})
        self.calls: list[Called] = []
        self.current_step = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self._operators:
            raise AttributeError(f"the workload has no operator {name!r}; it has {', '.join(sorted(self._operators))}")
        return functools.partial(self._call, self._operators[name])

    def call_service(self, service: str, *arguments: Any, session: str = "") -> Any:
        """Call a service of the workload, as `RankContext.call` does from another role.

        The service sees the caller ``caller``, rank 0 (`RankContext.called_by`). Calls of one `session` go to one rank.
        Others go to each rank in turn. Raises `AttributeError` if the workload has no such service.
        """
        if service not in self._services:
            raise AttributeError(f"the workload has no service {service!r}; it has {', '.join(sorted(self._services))}")
        if self._before is not None:
            self._before(len(self.calls))
        rank = (crc32(session.encode()) if session else len(self.calls)) % self._ranks.world_size
        given = {rank: {"arguments": packed(list(arguments))}}
        reply = self._ranks.ask(self.current_step, service, {rank: given[rank]["arguments"]}, session)[rank]
        fingerprints, written = {rank: reply.fingerprint}, {rank: reply.written}
        called = Called(self.current_step, service, given, (), fingerprints, written, reply.value, None, True, session)
        self.calls.append(called)
        assert reply.value is not None
        return unpacked(reply.value)

    def _call(self, spec: OperatorSpec, /, *positional: Any, **values: Any) -> Any:
        if len(positional) > len(spec.inputs):
            raise TypeError(f"{spec.name} takes {len(spec.inputs)} values, not {len(positional)}")
        values = {**dict(zip(spec.inputs, positional, strict=False)), **values}
        if unknown := values.keys() - spec.inputs.keys():
            raise TypeError(f"{spec.name} has no parameter {sorted(unknown)}; it has {sorted(spec.inputs)}")
        if missing := set(spec.required) - values.keys():
            raise TypeError(f"{spec.name} needs {sorted(missing)}")
        if self._before is not None:
            self._before(len(self.calls))
        size = self._ranks.world_size
        streamed = tuple(values) if spec.streaming else ()
        arguments: dict[int, dict[str, bytes]] = {rank: {} for rank in range(size)}
        for name, value in values.items():
            whole = unpacked(packed(value))
            for rank, part in enumerate(cut(whole, spec.inputs[name], size)):
                arguments[rank][name] = packed(_chunks(part, self._chunk_rows) if spec.streaming else part)
        shared = shared_by(spec)
        replies = self._ranks.call(self.current_step, spec.name, arguments, streamed, shared)
        value = None
        if spec.returns is not None:
            parts = [reply.value for _, reply in sorted(replies.items())]
            silent = [rank for rank, part in enumerate(parts) if part is None]
            assert not silent, (
                f"{spec.name} declares that it returns {describe(declared(spec.returns))} and returned None on rank "
                f"{silent[0]} of {size}"
            )
            held = [unpacked(part) for part in parts if part is not None]
            value = joined(held, spec.returns) if shared is None else _in_order(held)
        self.calls.append(
            Called(
                self.current_step,
                spec.name,
                arguments,
                streamed,
                {rank: reply.fingerprint for rank, reply in replies.items()},
                {rank: reply.written for rank, reply in replies.items()},
                None if value is None else packed(value),
                shared,
            )
        )
        return value


def cut(value: Any, partition: Partition, size: int) -> list[Any]:
    """Split a whole value for `size` ranks that take it as `partition`. Of addends, the first rank gets all."""
    if isinstance(partition, Partial):
        return [value if rank == 0 or partition.op == "mean" else _nothing(value) for rank in range(size)]
    way = route(Broadcast(), 1, partition, size)
    parts = []
    for rank in range(size):
        selection = way.sends_to(0, rank)
        assert selection is not None
        parts.append(combine([select(value, selection)], way.combine))
    return parts


def joined(parts: list[Any], partition: Partition) -> Any:
    """Join the ranks' values, partitioned as `partition`."""
    way = route(partition, len(parts), Broadcast(), 1)
    chosen = []
    for source in way.sources(0):
        selection = way.sends_to(source, 0)
        assert selection is not None
        chosen.append(select(parts[source], selection))
    return combine(chosen, way.combine)


def _in_order(parts: Sequence[Sequence[Sequence[Any]]]) -> Any:
    """Join the rows of all ranks' items in the order of the original value."""
    return assembled(item for items in parts for item in items)


def _nothing(value: Any) -> Any:
    if isinstance(value, Batch):
        return Batch({name: _nothing(column) for name, column in value.items()}, rows=value.rows)
    if isinstance(value, Mapping):
        return {name: _nothing(item) for name, item in value.items()}
    return value * 0


def _chunks(value: Any, rows: int) -> list[Any]:
    """Return at least one chunk. A value without rows is one chunk."""
    if not rows or (not isinstance(value, (Batch, Ragged, list)) and not getattr(value, "shape", ())):
        return [value]
    count = value.rows if isinstance(value, Batch) else len(value)
    return [value[start : start + rows] for start in range(0, count, rows)] or [value]
