"""Routes: which rank sends what to which rank, derived from the partitions and world sizes at both
ends of an edge.

This module does not touch values; engines apply the selections and combinations.
Signatures and their boxing follow OneFlow's SBP (arXiv:2110.15032, section 3.1), extended to M
producers and N consumers.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rolemesh.api.partition import Balanced, Broadcast, Partial, Partition, Sharded, Split


class Whole(msgspec.Struct, frozen=True, tag=True):
    """The whole value of the producer rank."""


class Part(msgspec.Struct, frozen=True, tag=True):
    """The parts from `start` to before `stop` along `axis`, if the producer rank's value is cut
    into `parts` equal parts."""

    axis: int
    start: int
    stop: int
    parts: int

    def bounds(self, extent: int) -> tuple[int, int]:
        """Return start and stop for a value with `extent` rows along `axis`. Both round to the
        nearest row, so even rows come back as they were sent."""
        half = self.parts // 2
        return (extent * self.start + half) // self.parts, (extent * self.stop + half) // self.parts


class Block(msgspec.Struct, frozen=True, tag=True):
    """The part of the producer rank's tensors that lies in block `index` of ``torch.chunk(tensor,
    count, dim)``."""

    dim: int
    index: int
    count: int


class Share(msgspec.Struct, frozen=True, tag=True):
    """The part of an item that lies in part `index` of `count` equal parts of the rows of all
    items."""

    index: int
    count: int


Selection: TypeAlias = Whole | Part | Block | Share


class Take(msgspec.Struct, frozen=True, tag=True):
    """There is one part, and it is the whole value."""


class Concat(msgspec.Struct, frozen=True, tag=True):
    """The parts, concatenated along `axis`."""

    axis: int


class Reduce(msgspec.Struct, frozen=True, tag=True):
    """The element-wise sum or mean of the parts, added in the order of the producers' ranks."""

    op: Literal["sum", "mean"]


class Assemble(msgspec.Struct, frozen=True, tag=True):
    """The full tensors as a plain ``dict[str, array]``, from the `Shards` that cover them."""


class Pieces(msgspec.Struct, frozen=True, tag=True):
    """The shards that cover each tensor, as a ``dict[str, list[Shard]]``; a single shard if it is
    the whole tensor."""


class Reshard(msgspec.Struct, frozen=True, tag=True):
    """`Shards` with one block of ``torch.chunk(tensor, count, dim)``, joined from its pieces."""

    dim: int
    count: int


class Collate(msgspec.Struct, frozen=True, tag=True):
    """The rows of all items in the order of the items' numbers. If an item was computed twice, the
    first result counts."""


Combine: TypeAlias = Take | Concat | Reduce | Assemble | Pieces | Reshard | Collate


class Send(msgspec.Struct, frozen=True):
    """One payload, encoded once, that goes to each of `consumers` (ranks of the consuming role,
    ascending)."""

    selection: Selection
    consumers: tuple[int, ...]


class Route(msgspec.Struct, frozen=True):
    """The messages of one value of an edge; they are the same in every step.

    A rank's messages are computed on demand, so a rank of a large role knows only its own peers.
    `meet` selects these peers: those whose rank equals the consumer's modulo `producers`; those
    whose shares of the value overlap; or all. Parts may be empty and are sent nevertheless.
    """

    kind: str
    producers: int
    consumers: int
    meet: Literal["modulo", "overlap", "all"]
    cut: Literal["whole", "part", "block", "overlap", "share"]
    axis: int
    combine: Combine

    def sources(self, consumer: int) -> range:
        """Return the producer ranks that each send exactly one part to this consumer, in the order
        that `combine` expects."""
        if self.meet == "modulo":
            return range(consumer % self.producers, consumer % self.producers + 1)
        return self._met(consumer, self.consumers, self.producers)

    def targets(self, producer: int) -> range:
        """Return the consumer ranks that receive something from this producer."""
        if self.meet == "modulo":
            return range(producer, self.consumers, self.producers)
        return self._met(producer, self.producers, self.consumers)

    def _met(self, rank: int, own: int, others: int) -> range:
        """Return those of the `others` ranks whose shares overlap with the share of `rank` of
        `own`; or all of them."""
        return (
            range(others)
            if self.meet == "all"
            else range(rank * others // own, -(-(rank + 1) * others // own))
        )

    def sends(self, producer: int) -> tuple[Send, ...]:
        """Return the payloads that this producer rank sends."""
        grouped: dict[Selection, list[int]] = {}
        for consumer in self.targets(producer):
            grouped.setdefault(self._selection(producer, consumer), []).append(consumer)
        return tuple(Send(selection, tuple(consumers)) for selection, consumers in grouped.items())

    def sends_to(self, producer: int, consumer: int) -> Selection | None:
        """Return the part that `producer` sends to `consumer`, or None."""
        return self._selection(producer, consumer) if consumer in self.targets(producer) else None

    def _selection(self, producer: int, consumer: int) -> Selection:
        m = self.producers
        n = self.consumers
        match self.cut:
            case "whole":
                return Whole()
            case "block":
                return Block(self.axis, consumer, n)
            case "share":
                return Share(consumer, n)
            case "part":  # of a value that the producer has whole along the axis
                start = consumer
                stop = consumer + 1
            case (
                "overlap"
            ):  # in parts of which a producer has n, from the n * producer-th, and a consumer m
                start = max(0, consumer * m - producer * n)
                stop = min(n, (consumer + 1) * m - producer * n)
        return Whole() if (start, stop) == (0, n) else Part(self.axis, start, stop, n)


class RouteError(ValueError):
    """Two partitions that do not fit. `why` is the cause, `remedy` the advice for the author of the
    operators."""

    def __init__(
        self, src: Partition, m: int, dst: Partition, n: int, why: str, remedy: str
    ) -> None:
        self.pair = (
            f"{describe(declared(src))} over {_ranks(m)} cannot feed "
            f"{describe(dst)} over {_ranks(n)}"
        )
        super().__init__(f"{self.pair}: {why}; {remedy}")
        self.why = why
        self.remedy = remedy


def route(src: Partition, m: int, dst: Partition, n: int) -> Route:
    """Return the route from `m` ranks that hold a value as `src` to `n` ranks that need it as
    `dst`.

    Raises `RouteError` (a `ValueError`) for a pair that does not fit.
    """
    if m < 1 or n < 1:
        raise ValueError(f"world sizes must be at least 1, not {m} and {n}")
    if _counts_from_the_end(src) or _counts_from_the_end(dst):
        raise _refusal(src, m, dst, n)
    # A balanced consumer takes items of what each of its ranks has whole.
    shared = isinstance(dst, Balanced)
    match src, Broadcast() if shared else dst:
        case Balanced(), Split(axis=0):
            return _route("collate", m, n, "all", "share", 0, Collate())
        case Balanced(), Broadcast():
            return _route("collate", m, n, "all", "whole", 0, Collate())
        case Split(axis=a), Split(axis=b) if a == b and m == n:
            return _route("identity", m, n, "overlap", "overlap", a, Take())
        case Split(axis=a), Split(axis=b) if a == b:
            return _route("repartition", m, n, "overlap", "overlap", a, Concat(a))
        case Split(axis=a), Split(axis=b):
            return _route("all-to-all", m, n, "all", "part", b, Concat(a))
        case Split(axis=a), Broadcast():
            return _route("all-gather", m, n, "all", "whole", a, Concat(a))
        case Broadcast(), Split(axis=b):
            return _route("scatter", m, n, "modulo", "part", b, Take())
        case Broadcast(), Broadcast():
            return _route("identity" if m == n else "broadcast", m, n, "modulo", "whole", 0, Take())
        case Partial(op=op), Broadcast():
            return _route("reduce", m, n, "all", "whole", 0, Reduce(op))
        case Partial(op=op), Split(axis=b):
            return _route("reduce-scatter", m, n, "all", "part", b, Reduce(op))
        case Sharded(), Broadcast() if not shared:
            return _route("assemble", m, n, "all", "whole", 0, Assemble())
        case Sharded(), Sharded(dim=None):
            return _route("pieces", m, n, "all", "whole", 0, Pieces())
        case Broadcast(), Sharded(dim=None):
            return _route("pieces", m, n, "modulo", "whole", 0, Pieces())
        case Sharded(), Sharded(dim=int(d)):
            return _route("reshard", m, n, "all", "block", d, Reshard(d, n))
        case Broadcast(), Sharded(dim=int(d)):
            return _route("shard", m, n, "modulo", "block", d, Reshard(d, n))
        case Partial(op=a), Partial(op=b) if a == b and m == n:
            return _route("identity", m, n, "modulo", "whole", 0, Take())
    raise _refusal(src, m, dst, n)


def _counts_from_the_end(side: Partition) -> bool:
    return (side.axis if isinstance(side, Split) else getattr(side, "dim", 0) or 0) < 0


def _refusal(src: Partition, m: int, dst: Partition, n: int) -> RouteError:
    """Return the reason why this pair of partitions does not fit."""

    def refused(why: str, remedy: str) -> RouteError:
        return RouteError(src, m, dst, n, why, remedy)

    if _counts_from_the_end(src) or _counts_from_the_end(dst):
        return refused("negative axes depend on the value's dimensions", "count axes from 0")
    match src, dst:
        case Balanced(), _:
            return refused("items are whole rows", "take it as Split(), Broadcast() or Balanced()")
        case Sharded(), Balanced():
            why = "named tensors have no rows to share out"
            return refused(why, "take it as Sharded() or Broadcast()")
        case Partial(op=a), Partial(op=b) if a != b:
            remedy = f"declare Partial('{a}') on both sides, or take it as Broadcast()"
            return refused(f"a {a} is not a {b}", remedy)
        case Partial(), Partial():
            why = "partial sums are passed on rank by rank"
            return refused(why, "use equal world sizes, or take it as Broadcast()")
        case _, Partial():
            return refused("a whole value has no partial sums", "take it as Broadcast() or Split()")
        case Split(), _:
            why = "rows are not named tensors"
            return refused(why, "take it as Split(), or return Shards with returns=Sharded()")
        case Sharded(), _:
            why = "named tensors have no rows to split"
            return refused(why, "take it as Sharded() or Broadcast()")
        case _:
            remedy = "take it as Broadcast(), or reduce in the producer"
            return refused("partial sums are not sharded here", remedy)


def chunk_bounds(extent: int, index: int, count: int) -> tuple[int, int]:
    """Return start and stop of chunk `index` of ``torch.chunk(tensor, count)`` with `extent` rows;
    empty past the end."""
    size = -(-extent // count)
    return min(index * size, extent), min((index + 1) * size, extent)


def describe(partition: Partition) -> str:
    """Return the partition as it is written in code, without default arguments: ``Split(1)``,
    ``Partial('mean')``."""
    given = msgspec.structs.astuple(partition)
    defaults = type(partition).__struct_defaults__
    while given and given[-1] == defaults[len(given) - 1]:
        given = given[:-1]
    return f"{type(partition).__name__}({', '.join(map(repr, given))})"


def by_demand(partition: Partition | None) -> Balanced | None:
    """How ranks share the rows by demand; None if each rank takes its own part."""
    return partition if isinstance(partition, Balanced) else None


def declared(returned: Partition) -> Partition:
    """Return the partition that an operator declares for its result: ``Split()`` for the rows of a
    `Balanced` input."""
    return returned if by_demand(returned) is None else Split()


def _route(kind: str, m: int, n: int, meet: Any, cut: Any, axis: int, combine: Combine) -> Route:
    combine = Take() if m == 1 and isinstance(combine, Concat) else combine
    kind = "identity" if m == n == 1 and isinstance(combine, Take) else kind
    return Route(kind, m, n, meet, cut, axis, combine)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
