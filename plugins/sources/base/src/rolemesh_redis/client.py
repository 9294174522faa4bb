"""The Redis part of the source: its commands, its errors, and the meaning of an offset.

An offset is a start for XRANGE: ``(5-0`` is after the entry 5-0, ``5-0`` before it. That entry must still exist when
the source reads from the offset. Streams are trimmed from their beginning, so if the entry exists, nothing after it is
lost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from rolemesh_sources import Offset, SourceError
from rolemesh_sources.brokers import BrokerAway, BrokerClient, Fetched, Look

__all__ = ["StreamsClient", "StreamsOptions"]

_LOG = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(dict[str, Any]).decode
CONNECT_S = 5.0
ANSWER_S = 20.0
"""Maximum seconds of an answer. A server with ``appendfsync always`` waits for its disk."""
ANSWER_BYTES = 4 << 20
"""Approximate number of bytes of one request, over all streams."""
MOST = 1024
EMPTY = "(0-0"
"""Offset of an empty stream: reading from it begins with whatever entry is the first."""
FORMS = ("decode_responses", "protocol", "legacy_responses")
"""Options that change the form of answers, which only this module reads."""
NOT_YET = ("LOADING", "BUSY ", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS", "MISCONF", "OOM")
"""First words of the answers of a server that is running but temporarily unable to serve."""


class StreamsOptions(msgspec.Struct, frozen=True):
    """The settings of `RedisOptions`, without the URL. `ca` is a path."""

    streams: tuple[str, ...]
    field: str | None
    until: str | None
    trim: bool
    skip: bool
    ca: str | None


class StreamsClient(BrokerClient):
    """See `BrokerClient`."""

    def __init__(self, url: str, options: StreamsOptions) -> None:
        """Create the client. Raises `SourceError` for a URL that redis-py cannot parse."""
        parts = urlsplit(url)
        self._where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._options = options
        self._names = [name for name in options.streams if not set("*?[") & set(name)]
        self._patterns = [name for name in options.streams if name not in self._names]
        self._average = 4096.0
        self._skipped: set[tuple[str, str]] = set()
        tls = {"ssl_ca_certs": options.ca} if options.ca is not None else {}
        tcp = {} if parts.scheme == "unix" else {"socket_keepalive": True}
        try:
            pool = redis.ConnectionPool.from_url(  # the URL's options win over these
                _without(url, FORMS),
                socket_connect_timeout=CONNECT_S,
                socket_timeout=ANSWER_S,
                retry=Retry(NoBackoff(), 0),
                **tcp,
                **tls,
            )
            pool.connection_class(**pool.connection_kwargs)  # raises for options that it lacks; connects later
            self._redis = redis.Redis.from_pool(pool)
        except (ValueError, TypeError) as error:
            remedy = "see the option url of the source redis"
            raise SourceError(f"redis-py cannot read the URL: {error}", where=self._where, remedy=remedy) from error

    @property
    def where(self) -> str:
        """See `BrokerClient.where`."""
        return self._where

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert errors inside to `BrokerAway` or `SourceError`, without a password in the message."""
        try:
            yield
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            remedy = (
                "give user and password in the URL, as a variable (${REDIS_URL}), and let the user read the streams"
            )
            raise SourceError(f"the server refuses us: {error}", where=self._where, remedy=remedy) from error
        except ResponseError as error:
            if str(error).startswith(NOT_YET):
                raise BrokerAway(str(error)) from error
            remedy = "keys that are listed must be streams, of one server of version 6.2 or newer that is no cluster"
            raise SourceError(f"the server says: {error}", where=self._where, remedy=remedy) from error
        except (RedisError, OSError) as error:
            raise BrokerAway(str(error) or type(error).__name__) from error

    # ------------------------------------------------------------------------------------------- what there is

    def look(self) -> Look:
        """See `BrokerClient.look`."""
        until = self._options.until
        with self._asking():
            over = until == "end" or (until is not None and bool(self._redis.exists(until)))
            names = list(self._names)
            for pattern in self._patterns:
                names += (found.decode() for found in self._redis.scan_iter(pattern, 1000, "stream"))
            pipe = self._redis.pipeline(transaction=False)
            for name in (names := sorted(set(names) - {until})):
                pipe.xrevrange(name, count=1)
            ends = pipe.execute()
        newest = {name: f"({end[0][0].decode()}" if end else None for name, end in zip(names, ends, strict=True)}
        return Look(newest, over)

    def behind(self, newest: Offset, offset: Offset) -> float:
        """See `BrokerClient.behind`. The unit is seconds, from the times in the ids; the minimum is a millisecond."""
        end, at = _numbers(newest), _numbers(offset or EMPTY)
        if at > end or (at == end and str(offset).startswith("(")):
            return 0.0
        return max((end[0] - at[0]) / 1000, 0.001) if at[0] else 0.001

    # ------------------------------------------------------------------------------------------------ records

    def fetch(self, asked: Mapping[str, Offset], wait_s: float) -> Mapping[str, Sequence[Fetched]]:
        """See `BrokerClient.fetch`."""
        if found := self._there(asked):
            return found
        ids: dict[Any, Any] = {name: (offset or EMPTY).removeprefix("(") for name, offset in asked.items()}
        with self._asking():
            new = self._redis.xread(ids, count=1, block=max(int(wait_s * 1000), 1))
        return self._there(asked) if new else {}

    def find(self, partition: str, start: datetime | int | str) -> Offset:
        """See `BrokerClient.find`. Ids begin with the time in milliseconds."""
        if not isinstance(start, datetime):
            return str(start)
        with self._asking():
            found: Any = self._redis.xrange(partition, min=math.ceil(start.timestamp() * 1000), count=1)
            newest: Any = found or self._redis.xrevrange(partition, count=1)
        return f"{'' if found else '('}{newest[0][0].decode()}" if newest else None

    def _there(self, asked: Mapping[str, Offset]) -> dict[str, list[Fetched]]:
        """Return the entries that exist now."""
        count = int(min(max(ANSWER_BYTES / self._average / len(asked), 1), MOST))
        with self._asking():
            pipe = self._redis.pipeline(transaction=False)
            for name, offset in asked.items():
                if offset is not None:
                    pipe.xrange(name, min=offset.removeprefix("("), count=count + 1)
                else:
                    pipe.xrange(name, count=1)
            answers = pipe.execute()
        found = ((name, self._of(name, asked[name], answer)) for name, answer in zip(asked, answers, strict=True))
        return {name: records for name, records in found if records}

    def _of(self, name: str, offset: str | None, entries: list[Any]) -> list[Fetched]:
        if offset is None:
            return [Fetched(entries[0][0].decode(), None)] if entries else []
        first = entries[0][0].decode() if entries else None
        at = offset.removeprefix("(")
        if first != at and offset != EMPTY and (restart := self._gone(name, at, offset)) is not None:
            return [Fetched(restart, None)]
        if first == at and offset.startswith("("):
            entries = entries[1:]
        found: list[Fetched] = []
        for entry, fields in entries:
            try:
                found.append(self._record(name, entry, fields))
            except SourceError:
                if not found:
                    raise
                break  # those before it are read first
        if found:
            self._average += 0.2 * (sum(each.size for each in found) / len(found) - self._average)
        return found

    def _gone(self, name: str, at: str, offset: str) -> Offset:
        """The entry `at` is gone: return the offset at which to continue; None: continue with the entries after it."""
        with self._asking():
            try:
                info: dict[str, Any] = self._redis.xinfo_stream(name)
            except ResponseError as error:
                if "no such key" not in str(error):
                    raise
                info = {}
        last = info.get("last-generated-id", b"0-0")
        if last.decode() == at and offset.startswith("("):
            return None  # the stream never had an entry after it
        state = "is gone" if not info else f"now begins behind it or has lost its end ({last.decode()})"
        what = f"records at {offset!r} of stream {name!r} can no longer be told from lost ones: the stream {state}"
        if not self._options.skip:
            remedy = (
                "let producers keep what is not in a checkpoint yet (MINID or MAXLEN with room), let one job only have "
                "trim: true, and the server persist (appendonly yes); or set skip: true to go on with what is there"
            )
            raise SourceError(what, where=self._where, remedy=remedy)
        if (name, at) not in self._skipped:
            self._skipped.add((name, at))
            _LOG.warning("%s: %s; going on with what is there", self._where, what)
        return EMPTY if info and _numbers(last) < _numbers(at) else None

    def _record(self, name: str, entry: bytes, fields: Mapping[bytes, bytes] | None) -> Fetched:
        offset = f"({entry.decode()}"
        size = 64 + sum(len(key) + len(value) for key, value in (fields or {}).items())
        try:
            if self._options.field is None:
                row = {key.decode(): value.decode() for key, value in (fields or {}).items()}
            else:
                row = _decode((fields or {})[self._options.field.encode()])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
            why = "has no such field" if isinstance(error, KeyError) else f"is no JSON object: {error}"
            what = f"entry {entry.decode()} of stream {name!r}: field {self._options.field!r} {why}"
            if not self._options.skip:
                remedy = "correct what writes it, name another field, or set skip: true to leave such entries out"
                raise SourceError(what, where=self._where, remedy=remedy) from error
            _LOG.warning("%s: %s; it is left out", self._where, what)
            row = None
        return Fetched(offset, row, size)

    # ---------------------------------------------------------------------------------------------- the rest

    def acknowledge(self, position: Mapping[str, Offset]) -> None:
        """See `BrokerClient.acknowledge`. The entry at the offset stays, because it proves that nothing after it is
        lost."""
        if not self._options.trim:
            return
        with self._asking():
            pipe = self._redis.pipeline(transaction=False)
            for name, offset in position.items():
                if offset != EMPTY:
                    pipe.xtrim(name, minid=offset.removeprefix("("), approximate=False)
            pipe.execute()

    def close(self) -> None:
        """See `BrokerClient.close`."""
        self._redis.close()


def _numbers(offset: str | bytes) -> tuple[int, int]:
    """Return the two numbers of an id or offset."""
    text = offset.decode() if isinstance(offset, bytes) else offset
    first, _, second = text.removeprefix("(").partition("-")
    return int(first), int(second or 0)


def _without(url: str, names: Sequence[str]) -> str:
    """Return the URL without the options `names` of its query."""
    base, _, query = url.partition("?")
    left = [(name, value) for name, value in parse_qsl(query) if name not in names]
    return f"{base}?{urlencode(left)}" if left else base
