"""Encode values as a small msgpack header and raw buffers, so that array bytes travel out of band and are never parsed.

Supported types are None, numbers, strings, bytes, lists, tuples and dicts of them, numpy arrays, torch tensors,
`Batch`, `Ragged`, `Shard` and `Shards`, and those that `register_codec` adds. Any other value is pickled (protocol 5,
its arrays out of band), so frames are only accepted from ranks of the same job.
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import msgspec
import numpy as np

from rolemesh.api.batch import Batch, Ragged, Shard, Shards
from rolemesh.errors import PluginError
from rolemesh_dataplane.transports import TransportError

__all__ = [
    "Buffer", "Received", "below", "decode", "encode", "flat_buffers", "flatten", "register_codec", "unflatten",
    "unpacked", "unpickles",
]  # fmt: skip

Buffer: TypeAlias = bytes | memoryview
"""Contiguous bytes; `len` is their number."""


class Received(list[Buffer]):
    """The buffers of a received value. Other ranks may read the same bytes."""

    def writable(self, index: int) -> Buffer:
        """Return buffer `index` for writing, visible only to the caller; this class returns a copy."""
        return memoryview(bytearray(self[index]))


Tree: TypeAlias = Any
_Encoder: TypeAlias = Callable[[Any, list[Buffer]], Tree]
_Decoder: TypeAlias = Callable[[list[Any], Sequence[Buffer]], Any]

_COPIED = 4096
"""Maximum bytes of an array that is copied at once, which is cheaper than a view. Larger buffers are views of the live
array."""

_SIZES = [struct.Struct(f"<{count}Q") for count in range(17)]
_ALIGNMENT = 16

_pack = msgspec.msgpack.Encoder().encode
_unpack = unpacked = msgspec.msgpack.Decoder().decode
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_KINDS = frozenset("biufcmMSU")
_ODD = (AttributeError, SyntaxError)
"""Errors of a `Shard` of no array, and of numpy for a dtype with a comma."""
MALFORMED = (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError, ArithmeticError, *_ODD)
"""Errors of a tree that no encoder made."""
_DTYPES: dict[str, np.dtype[Any]] = {}


def encode(value: Any) -> tuple[bytes, list[Buffer]]:
    """Return the header and the buffers of `value`. Large buffers are views: send or copy them before `value` changes.

    CUDA tensors are moved to the CPU, and arrays that are not contiguous are copied. Raises `TransportError` for a
    value that cannot be pickled.
    """
    buffers: list[Buffer] = []
    try:
        return _pack(_tree(value, buffers)), buffers
    except (OverflowError, UnicodeEncodeError):
        buffers = []
        return _pack(_pickled(value, buffers)), buffers


def decode(header: Buffer, buffers: Sequence[Buffer]) -> Any:
    """Return the value of a header and its buffers. Arrays are read-only views of the buffers.

    Tensors are writable, because torch has no read-only ones: up to 1 MiB they are copies; larger ones are
    `Received.writable`, or views of buffers that nobody else uses. Raises `TransportError` for a header that is
    malformed or does not fit its buffers.
    """
    try:
        return _value(_unpack(header), buffers)
    except TransportError:
        raise
    except MALFORMED as error:
        raise TransportError(f"malformed value: {error}", remedy="all ranks must run the same rolemesh") from error


def unpickles(header: Buffer) -> bool:
    """Return whether `decode` would unpickle something, which can run any code. True also for a malformed header."""
    try:
        return _unpickles(_unpack(header))
    except (msgspec.MsgspecError, ValueError, LookupError, TypeError, RecursionError):
        return True


def _unpickles(tree: Tree) -> bool:
    """Search the tree in the same way as the decoders below."""
    if type(tree) is not list:
        return False
    children = below(tree)
    return True if children is None else any(map(_unpickles, children))


def below(tree: list[Any]) -> Sequence[Tree] | None:
    """Return the trees in a node; None for a pickled value, and for a node that this version does not know."""
    match tree[0]:
        case "b" | "n" | "s" | "T" | "l" | "t":
            return ()
        case "l*" | "t*":
            return tree[1]  # type: ignore[no-any-return]
        case "d":
            return [*tree[1], *tree[2]]
        case "B":
            return tree[3]  # type: ignore[no-any-return]
        case "R":
            return tree[1:3]
        case "S":
            return tree[1:2]
        case "Z":
            return tree[2]  # type: ignore[no-any-return]
        case "x":
            return tree[2:3]
    return None


def flatten(header: bytes, sizes: Sequence[int], buffers: Sequence[Buffer], head: bytes = b"") -> bytes:
    """Return sizes, header and buffers as one piece, with the buffers aligned to 16 bytes of it. `buffers` may be
    empty: (). `head` comes before them; its length is a multiple of 16."""
    parts: list[Buffer] = [head, _sizes(len(sizes)).pack(*sizes), header]
    at = 8 * len(sizes) + len(header)
    for buffer in buffers:
        gap = -at % _ALIGNMENT
        if gap:
            parts.append(bytes(gap))
        parts.append(buffer)
        at += gap + len(buffer)
    return b"".join(parts)


def unflatten(data: Buffer, at: int, hlen: int, count: int) -> tuple[Buffer, tuple[int, ...], int]:
    """Return header, buffer sizes and the start of the rest, for a result of `flatten` at `at` (a multiple of 16) of
    `data`.

    Raises `TransportError` if it does not fit into `data`.
    """
    start = at + 8 * count
    if start + hlen > len(data):
        raise TransportError(f"a frame of {len(data)} bytes announces {start + hlen}")
    return data[start : start + hlen], _sizes(count).unpack_from(data, at), start + hlen


def flat_buffers(data: Buffer, at: int, sizes: Sequence[int]) -> list[Buffer]:
    """Return the buffers behind a header that ends at `at`. Raises `TransportError` if they do not fill `data`."""
    buffers: list[Buffer] = []
    view = memoryview(data)
    for size in sizes:
        at += -at % _ALIGNMENT
        buffers.append(view[at : at + size])
        at += size
    if at != len(data):
        raise TransportError(f"a frame of {len(data)} bytes has buffers up to {at}")
    return buffers


def _sizes(count: int) -> struct.Struct:
    return _SIZES[count] if count < len(_SIZES) else struct.Struct(f"<{count}Q")


def register_codec(
    kind: type[Any], name: str, to_parts: Callable[[Any], Any], from_parts: Callable[[Any], Any]
) -> None:
    """Add a type to the codec: `to_parts` returns a value of supported types, `from_parts` makes the object from it.

    Call it in `Workload.setup` on both ends of an edge. Raises `ValueError` if `name` belongs to another type.
    """
    if _NAMED.get(name, (kind,))[0] is not kind:
        raise ValueError(f"codec name {name!r} is taken by {_NAMED[name][0].__qualname__}")
    _NAMED[name] = (kind, from_parts)
    _ENCODERS[kind] = lambda value, buffers: ["x", name, _tree(to_parts(value), buffers)]


# -------------------------------------------------------------------------------------------------- to a tree


def _tree(value: Any, buffers: list[Buffer]) -> Tree:
    kind = type(value)
    if kind in _SCALARS:
        if kind is bytes and len(value) > _COPIED:
            buffers.append(value)
            return ["b", len(buffers) - 1]
        return value
    encoder = _ENCODERS.get(kind)
    if encoder is not None:
        return encoder(value, buffers)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(value, buffers)
    return _pickled(value, buffers)


def _array(value: np.ndarray[Any, Any], buffers: list[Buffer]) -> Tree:
    dtype = value.dtype
    if dtype.kind not in _KINDS:
        return _pickled(value, buffers)
    if value.nbytes <= _COPIED:
        buffers.append(value.tobytes())
    else:
        buffers.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return ["n", dtype.str, value.shape, len(buffers) - 1]


def _generic(value: np.generic, buffers: list[Buffer]) -> Tree:
    tree = _array(np.asarray(value), buffers)
    return ["s", *tree[1:]] if tree[0] == "n" else _pickled(value, buffers)


def _tensor(value: Any, buffers: list[Buffer]) -> Tree:
    from rolemesh_dataplane import codec_torch

    if not codec_torch.is_plain(value):
        return _pickled(value, buffers)
    name, shape, raw = codec_torch.to_bytes(value)
    buffers.append(raw)
    return ["T", name, shape, len(buffers) - 1]


def _sequence(tag: str) -> _Encoder:
    def encoder(value: Sequence[Any], buffers: list[Buffer]) -> Tree:
        if _SCALARS.issuperset(map(type, value)):
            return [tag, value]
        return [tag + "*", [_tree(item, buffers) for item in value]]

    return encoder


def _dict(value: dict[Any, Any], buffers: list[Buffer]) -> Tree:
    return ["d", [_tree(key, buffers) for key in value], [_tree(item, buffers) for item in value.values()]]


def _batch(value: Batch, buffers: list[Buffer]) -> Tree:
    return ["B", value.rows, list(value), [_tree(column, buffers) for column in value.values()]]


def _ragged(value: Ragged, buffers: list[Buffer]) -> Tree:
    return ["R", _tree(value.values, buffers), _tree(value.offsets, buffers)]


def _shard(value: Shard, buffers: list[Buffer]) -> Tree:
    return ["S", _tree(value.data, buffers), value.shape, value.offsets]


def _shards(value: Shards, buffers: list[Buffer]) -> Tree:
    return ["Z", list(value), [_tree(shard, buffers) for shard in value.values()]]


def _pickled(value: Any, buffers: list[Buffer]) -> Tree:
    found: list[pickle.PickleBuffer] = []
    try:
        stream = pickle.dumps(value, protocol=5, buffer_callback=found.append)
        raws: list[Buffer] = [buffer.raw() for buffer in found]
    except BufferError:  # an array in Fortran's order among them: keep everything in band
        stream, raws = pickle.dumps(value, protocol=5), []
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:  # it would fail again
        kind = type(value)
        raise PluginError(
            f"a {kind.__module__}.{kind.__qualname__} cannot be sent along an edge: {error}",
            kind="misbehaved",
            remedy="return arrays, tensors, a Batch, or plain lists and dicts",
        ) from error
    first = len(buffers)
    buffers.append(stream)
    buffers.extend(raws)
    return ["p", first, len(raws)]


_ENCODERS: dict[type[Any], _Encoder] = {
    np.ndarray: _array,
    list: _sequence("l"),
    tuple: _sequence("t"),
    dict: _dict,
    Batch: _batch,
    Ragged: _ragged,
    Shard: _shard,
    Shards: _shards,
    **{kind: _generic for kind in np.sctypeDict.values() if np.dtype(kind).kind in _KINDS},
}
_NAMED: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {}


# ------------------------------------------------------------------------------------------------ from a tree


def _value(tree: Tree, buffers: Sequence[Buffer]) -> Any:
    if type(tree) is not list:
        if type(tree) is dict:
            raise ValueError("a map in a header")
        return tree
    decoder: _Decoder = _DECODERS[tree[0]]
    return decoder(tree, buffers)


def _buffer(index: Any, buffers: Sequence[Buffer]) -> Buffer:
    if type(index) is not int or index < 0:
        raise ValueError(f"buffer {index!r}")
    return buffers[index]


def _shape(tree: Any) -> list[int]:
    for extent in tree:
        if type(extent) is not int or extent < 0:
            raise ValueError(f"shape {tree!r}")
    return tree  # type: ignore[no-any-return]


def _dtype(name: Any) -> np.dtype[Any]:
    dtype = _DTYPES.get(name)
    if dtype is None:
        dtype = np.dtype(str(name))
        if dtype.kind not in _KINDS:
            raise ValueError(f"dtype {name!r}")
        if len(_DTYPES) < 256:
            _DTYPES[name] = dtype
    return dtype


def _from_array(tree: list[Any], buffers: Sequence[Buffer]) -> np.ndarray[Any, Any]:
    dtype, shape, raw = _dtype(tree[1]), _shape(tree[2]), _buffer(tree[3], buffers)
    if len(raw) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(raw)} bytes for an array of shape {shape} and dtype {dtype}")
    if not len(raw):
        empty = np.empty(shape, dtype)
        empty.flags.writeable = False
        return empty
    flat = np.frombuffer(raw, dtype)
    return flat if len(shape) == 1 else flat.reshape(shape)


def _from_generic(tree: list[Any], buffers: Sequence[Buffer]) -> Any:
    return _from_array(tree, buffers)[()]


def _from_tensor(tree: list[Any], buffers: Sequence[Buffer]) -> Any:
    from rolemesh_dataplane import codec_torch

    _, name, shape, index = tree
    raw = _buffer(index, buffers)
    if isinstance(buffers, Received) and len(raw) > codec_torch.COPIED:
        raw = buffers.writable(index)
    return codec_torch.from_bytes(str(name), _shape(shape), raw)


def _from_dict(tree: list[Any], buffers: Sequence[Buffer]) -> dict[Any, Any]:
    keys = [_value(key, buffers) for key in tree[1]]
    return dict(zip(keys, [_value(item, buffers) for item in tree[2]], strict=True))


def _from_batch(tree: list[Any], buffers: Sequence[Buffer]) -> Batch:
    _, rows, names, columns = tree
    return Batch(dict(zip(names, [_value(column, buffers) for column in columns], strict=True)), rows=int(rows))


def _from_ragged(tree: list[Any], buffers: Sequence[Buffer]) -> Ragged:
    return Ragged(_value(tree[1], buffers), _value(tree[2], buffers))


def _from_shard(tree: list[Any], buffers: Sequence[Buffer]) -> Shard:
    return Shard(_value(tree[1], buffers), _shape(tree[2]), _shape(tree[3]))


def _from_shards(tree: list[Any], buffers: Sequence[Buffer]) -> Shards:
    return Shards(zip(tree[1], [_value(item, buffers) for item in tree[2]], strict=True))


def _from_named(tree: list[Any], buffers: Sequence[Buffer]) -> Any:
    named = _NAMED.get(tree[1])
    if named is None:
        raise TransportError(
            f"no codec {tree[1]!r} in this process", remedy="call register_codec in the setup of the consumer too"
        )
    return named[1](_value(tree[2], buffers))


def _from_pickle(tree: list[Any], buffers: Sequence[Buffer]) -> Any:
    _, first, count = tree
    stream = _buffer(first, buffers)
    if type(count) is not int or not 0 <= count <= len(buffers) - first - 1:
        raise ValueError(f"{count!r} pickled buffers")
    try:
        return pickle.loads(stream, buffers=buffers[first + 1 : first + 1 + count])
    except Exception as error:
        raise TransportError(
            f"an object cannot be unpickled: {error!r}",
            remedy="its class must be importable in the consumer; or send arrays and plain lists and dicts",
        ) from error


_DECODERS: dict[str, _Decoder] = {
    "b": lambda tree, buffers: bytes(_buffer(tree[1], buffers)),
    "n": _from_array,
    "s": _from_generic,
    "T": _from_tensor,
    "l": lambda tree, buffers: _plain(tree[1]),
    "t": lambda tree, buffers: tuple(_plain(tree[1])),
    "l*": lambda tree, buffers: [_value(item, buffers) for item in tree[1]],
    "t*": lambda tree, buffers: tuple(_value(item, buffers) for item in tree[1]),
    "d": _from_dict,
    "B": _from_batch,
    "R": _from_ragged,
    "S": _from_shard,
    "Z": _from_shards,
    "x": _from_named,
    "p": _from_pickle,
}


def _plain(items: Any) -> list[Any]:
    if type(items) is not list or not _SCALARS.issuperset(map(type, items)):
        raise ValueError("a plain list with composite items")
    return items
