"""Who sends what to whom: from the partitions and world sizes at both ends of an edge to a static `Route`.

Nothing here touches values; `rolemesh.graph.values` applies the selections and combinations. Signatures and their
boxing follow OneFlow's SBP (arXiv:2110.15032, section 3.1), extended to M producers and N consumers.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rolemesh.api.partition import Balanced, Broadcast, Partial, Partition, Sharded, Split


class Whole(msgspec.Struct, frozen=True, tag=True):
    """The producer rank's whole value."""


class Part(msgspec.Struct, frozen=True, tag=True):
    """Of the producer rank's extent along `axis` the parts from `start` to before `stop`, of so many equal `parts`."""

    axis: int
    start: int
    stop: int
    parts: int

    def bounds(self, extent: int) -> tuple[int, int]:
        """Start and stop for a value with `extent` rows along `axis`: the nearest, so even rows come back as sent."""
        half = self.parts // 2
        return (extent * self.start + half) // self.parts, (extent * self.stop + half) // self.parts


class Block(msgspec.Struct, frozen=True, tag=True):
    """What of the producer rank's tensors lies in block `index` of ``torch.chunk(tensor, count, dim)``."""

    dim: int
    index: int
    count: int


class Share(msgspec.Struct, frozen=True, tag=True):
    """Of an item what lies in part `index` of `count` equal parts of the rows that all items have together."""

    index: int
    count: int


Selection: TypeAlias = Whole | Part | Block | Share


class Take(msgspec.Struct, frozen=True, tag=True):
    """There is one part, and it is the value."""


class Concat(msgspec.Struct, frozen=True, tag=True):
    """The parts one after the other along `axis`."""

    axis: int


class Reduce(msgspec.Struct, frozen=True, tag=True):
    """The parts' element-wise sum or mean, added in the order of the producers' ranks."""

    op: Literal["sum", "mean"]


class Assemble(msgspec.Struct, frozen=True, tag=True):
    """The full tensors as a plain ``dict[str, array]``, from `Shards` that cover them."""


class Pieces(msgspec.Struct, frozen=True, tag=True):
    """The shards that cover each tensor, as a ``dict[str, list[Shard]]``: one, where it is all of it."""


class Reshard(msgspec.Struct, frozen=True, tag=True):
    """`Shards` with one block of ``torch.chunk(tensor, count, dim)``, from the pieces of it."""

    dim: int
    count: int


class Collate(msgspec.Struct, frozen=True, tag=True):
    """The rows of all items, in the order of the items' numbers; of an item that was made twice the first counts."""


Combine: TypeAlias = Take | Concat | Reduce | Assemble | Pieces | Reshard | Collate


class Send(msgspec.Struct, frozen=True):
    """One payload, encoded once, that goes to each of `consumers` (ranks of the consuming role, ascending)."""

    selection: Selection
    consumers: tuple[int, ...]


class Route(msgspec.Struct, frozen=True):
    """The messages of one value of an edge, the same on every step.

    What a rank sends and takes is worked out when it is asked for, so that a rank of many knows of its peers alone.
    `meet` says which ranks those are: the consumer's, modulo `producers`; those whose shares of the value overlap; or
    all. Parts may be empty, and are sent all the same.
    """

    kind: str
    producers: int
    consumers: int
    meet: Literal["modulo", "overlap", "all"]
    cut: Literal["whole", "part", "block", "overlap", "share"]
    axis: int
    combine: Combine

    def sources(self, consumer: int) -> range:
        """The producer ranks from which this one takes exactly one part each, in the order that `combine` wants."""
        if self.meet == "modulo":
            return range(consumer % self.producers, consumer % self.producers + 1)
        return self._met(consumer, self.consumers, self.producers)

    def targets(self, producer: int) -> range:
        """The consumer ranks that take something from this one."""
        if self.meet == "modulo":
            return range(producer, self.consumers, self.producers)
        return self._met(producer, self.producers, self.consumers)

    def _met(self, rank: int, own: int, others: int) -> range:
        """Of as many `others`, those whose shares overlap with that of `rank` of `own`; or all of them."""
        return range(others) if self.meet == "all" else range(rank * others // own, -(-(rank + 1) * others // own))

    def sends(self, producer: int) -> tuple[Send, ...]:
        """What this producer rank sends."""
        grouped: dict[Selection, list[int]] = {}
        for consumer in self.targets(producer):
            grouped.setdefault(self._selection(producer, consumer), []).append(consumer)
        return tuple(Send(selection, tuple(consumers)) for selection, consumers in grouped.items())

    def sends_to(self, producer: int, consumer: int) -> Selection | None:
        """What `producer` sends to `consumer`, or None."""
        return self._selection(producer, consumer) if consumer in self.targets(producer) else None

    def _selection(self, producer: int, consumer: int) -> Selection:
        m, n = self.producers, self.consumers
        match self.cut:
            case "whole":
                return Whole()
            case "block":
                return Block(self.axis, consumer, n)
            case "share":
                return Share(consumer, n)
            case "part":  # of a value that the producer has whole along the axis
                start, stop = consumer, consumer + 1
            case "overlap":  # in parts of which a producer has n, from the n * producer-th, and a consumer m
                start, stop = max(0, consumer * m - producer * n), min(n, (consumer + 1) * m - producer * n)
        return Whole() if (start, stop) == (0, n) else Part(self.axis, start, stop, n)


class RouteError(ValueError):
    """Two partitions that do not fit. `why` is the cause, `remedy` what the author of the operators can do."""

    def __init__(self, src: Partition, m: int, dst: Partition, n: int, why: str, remedy: str) -> None:
        self.pair = f"{describe(declared(src))} over {_ranks(m)} cannot feed {describe(dst)} over {_ranks(n)}"
        super().__init__(f"{self.pair}: {why}; {remedy}")
        self.why, self.remedy = why, remedy


def route(src: Partition, m: int, dst: Partition, n: int) -> Route:
    """The route from `m` ranks that hold a value as `src` to `n` ranks that want it as `dst`.

    Raises `RouteError` (a `ValueError`) for a pair that does not fit.
    """
    if m < 1 or n < 1:
        raise ValueError(f"world sizes must be at least 1, not {m} and {n}")

    def refused(why: str, remedy: str) -> RouteError:
        return RouteError(src, m, dst, n, why, remedy)

    for side in (src, dst):
        if (isinstance(side, Split) and side.axis < 0) or (isinstance(side, Sharded) and (side.dim or 0) < 0):
            raise refused("negative axes depend on the value's dimensions", "count axes from 0")
    match src, Broadcast() if isinstance(dst, Balanced) else dst:  # each rank takes items of what it has whole
        case Balanced(), Split(axis=0):
            return _route("collate", m, n, "all", "share", 0, Collate())
        case Balanced(), Broadcast():
            return _route("collate", m, n, "all", "whole", 0, Collate())
        case Balanced(), _:
            raise refused("items are whole rows", "take it as Split(), Broadcast() or Balanced()")
        case Sharded(), Broadcast() if isinstance(dst, Balanced):
            raise refused("named tensors have no rows to share out", "take it as Sharded() or Broadcast()")
        case Split(axis=a), Split(axis=b) if a == b:
            kind, combine = ("identity", Take()) if m == n else ("repartition", Concat(a))
            return _route(kind, m, n, "overlap", "overlap", a, combine)
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
        case Sharded(), Broadcast():
            return _route("assemble", m, n, "all", "whole", 0, Assemble())
        case ((Sharded() | Broadcast()), Sharded(dim=None)):
            return _route("pieces", m, n, "all" if isinstance(src, Sharded) else "modulo", "whole", 0, Pieces())
        case Sharded(), Sharded(dim=int(d)):
            return _route("reshard", m, n, "all", "block", d, Reshard(d, n))
        case Broadcast(), Sharded(dim=int(d)):
            return _route("shard", m, n, "modulo", "block", d, Reshard(d, n))
        case Partial(op=a), Partial(op=b) if a == b and m == n:
            return _route("identity", m, n, "modulo", "whole", 0, Take())
        case Partial(op=a), Partial(op=b) if a != b:
            raise refused(f"a {a} is not a {b}", f"declare Partial('{a}') on both sides, or take it as Broadcast()")
        case Partial(), Partial():
            raise refused("addends are handed on rank by rank", "use equal world sizes, or take it as Broadcast()")
        case _, Partial():
            raise refused("what is whole has no addends", "take it as Broadcast() or Split()")
        case Split(), _:
            raise refused("rows are not named tensors", "take it as Split(), or return Shards with returns=Sharded()")
        case Sharded(), _:
            raise refused("named tensors have no rows to split", "take it as Sharded() or Broadcast()")
        case _:
            raise refused("addends are not sharded here", "take it as Broadcast(), or reduce in the producer")


def chunk_bounds(extent: int, index: int, count: int) -> tuple[int, int]:
    """Start and stop of chunk `index` of ``torch.chunk(tensor, count)`` with `extent` rows; empty past the end."""
    size = -(-extent // count)
    return min(index * size, extent), min((index + 1) * size, extent)


def describe(partition: Partition) -> str:
    """``Split(1)``, ``Partial('mean')``: a partition as it is written, without the defaults at its end."""
    given, defaults = msgspec.structs.astuple(partition), type(partition).__struct_defaults__
    while given and given[-1] == defaults[len(given) - 1]:
        given = given[:-1]
    return f"{type(partition).__name__}({', '.join(map(repr, given))})"


def declared(returned: Partition) -> Partition:
    """How an operator declares what it returns: ``Split()``, if that are the rows of a `Balanced` input."""
    return Split() if isinstance(returned, Balanced) else returned


def _route(kind: str, m: int, n: int, meet: Any, cut: Any, axis: int, combine: Combine) -> Route:
    combine = Take() if m == 1 and isinstance(combine, Concat) else combine
    kind = "identity" if m == n == 1 and isinstance(combine, Take) else kind
    return Route(kind, m, n, meet, cut, axis, combine)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
