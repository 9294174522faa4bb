"""The NATS part of the source: its calls, its errors, and the meaning of an offset.

An offset is the sequence number of the last read message. Streams number their messages without gaps and report the
first one, so the source notices messages that were removed before they were read.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import nats
from nats import errors
from nats.js import api
from nats.js import errors as js_errors

from rolemesh_sources import Offset, SourceError
from rolemesh_sources.brokers import BrokerAway, BrokerClient, Fetched, Look

__all__ = ["JetStreamClient", "JetStreamOptions"]

_LOG = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(dict[str, Any]).decode
CONNECT_S = 5
ANSWER_S = 10.0
UNUSED_S = 60.0
"""Seconds after which the server forgets an unused consumer, so a killed rank leaves none behind."""
ANSWER_BYTES = 4 << 20
MOST = 1024


class JetStreamOptions(msgspec.Struct, frozen=True):
    """The settings of `NatsOptions`, without the URL. `credentials` and `ca` are paths."""

    streams: tuple[str, ...]
    until: str | None
    trim: bool
    skip: bool
    credentials: str | None
    ca: str | None


class _Consumer:
    """A consumer in the server for one stream, which returns the messages after `at`. `fresh`: it has returned none so
    far."""

    def __init__(self, pulled: Any, at: int) -> None:
        self.pulled, self.at, self.fresh = pulled, at, True


class JetStreamClient(BrokerClient):
    """See `BrokerClient`. The client's event loop runs only during the calls."""

    def __init__(self, url: str, options: JetStreamOptions) -> None:
        self._servers, self._options = url.split(","), options
        parts = [urlsplit(each) for each in self._servers]
        self._where = ",".join(f"{each.scheme}://{each.netloc.rpartition('@')[2]}" for each in parts)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Any = None
        self._consumers: dict[str, _Consumer] = {}
        self._average = 4096.0
        self._said = ""
        self._skipped: set[tuple[str, int]] = set()

    @property
    def where(self) -> str:
        """See `BrokerClient.where`."""
        return self._where

    def _ask(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run the call. Errors become `BrokerAway` or `SourceError`, without a password in the message."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(asyncio.wait_for(call, CONNECT_S + ANSWER_S))
        except (BrokerAway, SourceError):
            raise
        except js_errors.ServiceUnavailableError as error:
            raise BrokerAway(f"JetStream is not there yet: {error}") from error
        except js_errors.APIError as error:
            if error.code is not None and error.code >= 500:
                raise BrokerAway(str(error)) from error
            remedy = "let the user ask for the streams' info, make consumers of them, and purge them for trim: true"
            raise SourceError(f"JetStream says: {error}", where=self._where, remedy=remedy) from error
        except (errors.Error, OSError, TimeoutError, asyncio.CancelledError) as error:
            self._refused(error)
            raise BrokerAway(self._said or str(error) or type(error).__name__) from error

    def _refused(self, error: BaseException) -> None:
        if "authorization" in f"{error!r} {self._said}".lower():
            remedy = "give user and password, or a token, in the URL as a variable (${NATS_URL}), or credentials"
            raise SourceError(
                "the server refuses us: authorization violation", where=self._where, remedy=remedy
            ) from error

    async def _streams(self) -> Any:
        """Return JetStream, and connect if there is no connection."""
        if self._connection is None or not self._connection.is_connected:
            self._consumers.clear()
            self._said = ""
            context = ssl.create_default_context(cafile=self._options.ca)
            secure = any(each.startswith(("tls", "wss")) for each in self._servers) or self._options.ca is not None
            self._connection = await nats.connect(
                self._servers,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_S,
                error_cb=self._on_error,
                user_credentials=self._options.credentials,
                **({"tls": context} if secure else {}),
                **_login(self._servers),
            )
        return self._connection.jetstream(timeout=ANSWER_S)

    async def _on_error(self, error: Exception) -> None:
        self._said = str(error) or type(error).__name__

    # ------------------------------------------------------------------------------------------- what there is

    def look(self) -> Look:
        """See `BrokerClient.look`."""
        found: Look = self._ask(self._look())
        return found

    async def _look(self) -> Look:
        streams, options = await self._streams(), self._options
        infos: dict[str, Any] = {}
        names = [name for name in options.streams if not set("*?[") & set(name)]
        for name in names:
            infos[name] = await _info(streams, name)
        if patterns := [name for name in options.streams if name not in names]:
            at = 0
            while page := await streams.streams_info(offset=at):
                at += len(page)
                infos |= {i.config.name: i for i in page if any(fnmatchcase(i.config.name, p) for p in patterns)}
        for name, info in infos.items():
            if info is not None and info.config.retention == api.RetentionPolicy.WORK_QUEUE:
                what = f"stream {name!r} keeps a message until a consumer acknowledges it (retention: workqueue)"
                remedy = "read a stream with retention: limits, as a job reads messages again after a failure"
                raise SourceError(what, where=self._where, remedy=remedy)
        sealed = all(info is not None and info.config.sealed for info in infos.values()) and bool(infos)
        newest = {name: info.state.last_seq if info and info.state.messages else None for name, info in infos.items()}
        return Look(newest, options.until == "end" or (options.until == "sealed" and sealed))

    def behind(self, newest: Offset, offset: Offset) -> float:
        """See `BrokerClient.behind`. The unit is messages."""
        return float(max(newest - (offset or 0), 0))

    # ------------------------------------------------------------------------------------------------ records

    def fetch(self, asked: Mapping[str, Offset], wait_s: float) -> Mapping[str, Sequence[Fetched]]:
        """See `BrokerClient.fetch`."""
        found: Mapping[str, Sequence[Fetched]] = self._ask(self._fetch(asked, wait_s))
        return found

    async def _fetch(self, asked: Mapping[str, Offset], wait_s: float) -> Mapping[str, Sequence[Fetched]]:
        streams = await self._streams()
        count = int(min(max(ANSWER_BYTES / self._average / len(asked), 1), MOST))
        calls = (self._of(streams, name, offset, count, wait_s) for name, offset in asked.items())
        answers = await asyncio.gather(*calls)
        return {name: records for name, records in zip(asked, answers, strict=True) if records}

    async def _of(self, streams: Any, name: str, offset: int | None, count: int, wait_s: float) -> list[Fetched]:
        consumer = self._consumers.get(name)
        if offset is None or consumer is None or consumer.at != offset:
            info = await _info(streams, name)
            if info is None and offset is None:
                await asyncio.sleep(wait_s)
                return []
            if offset is None:
                return [Fetched(max(info.state.first_seq - 1, 0), None)]
            if (restart := self._gone(name, offset, info)) is not None:
                return [Fetched(restart, None)]
            consumer = await self._consume(streams, name, offset)
        try:
            messages = await consumer.pulled.fetch(count, timeout=wait_s)
        except (errors.TimeoutError, TimeoutError):
            return []
        return await self._records(streams, name, consumer, messages)

    def find(self, partition: str, start: datetime | int | str) -> Offset:
        """See `BrokerClient.find`. A message's number is its sequence number."""
        if isinstance(start, datetime):
            return self._ask(self._find(partition, start))
        if not str(start).isdecimal():
            remedy = "start: {STREAM: 120}"
            raise SourceError(f"{start!r} is no sequence number of {partition!r}", where=self._where, remedy=remedy)
        return max(int(start) - 1, 0)

    async def _find(self, name: str, start: datetime) -> int | None:
        streams = await self._streams()
        if await _info(streams, name) is None:
            return None
        config = _config(deliver_policy=api.DeliverPolicy.BY_START_TIME, opt_start_time=start)
        number: int = (await streams.add_consumer(name, config)).delivered.stream_seq
        return number

    async def _consume(self, streams: Any, name: str, at: int) -> _Consumer:
        if (before := self._consumers.pop(name, None)) is not None:
            with suppress(errors.Error):
                await before.pulled.unsubscribe()
        config = _config(deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=at + 1)
        made = await streams.add_consumer(name, config)
        pulled = await streams.pull_subscribe_bind(made.name, name)
        self._consumers[name] = consumer = _Consumer(pulled, at)
        return consumer

    async def _records(self, streams: Any, name: str, consumer: _Consumer, messages: Sequence[Any]) -> list[Fetched]:
        found: list[Fetched] = []
        for message in messages:
            number = message.metadata.sequence.stream
            if number <= consumer.at:
                continue
            if number > consumer.at + 1 and not (consumer.fresh and not found):
                # Removed from the middle, or lost on the way: a new consumer tells.
                await self._consume(streams, name, consumer.at)
                break
            if number > consumer.at + 1:
                restart = self._gone(name, consumer.at, await _info(streams, name))
                if restart is not None and restart != number - 1:
                    return [Fetched(restart, None)]
            try:
                found.append(self._record(name, number, message.data))
            except SourceError:
                if not found:
                    raise
                await self._consume(streams, name, consumer.at)
                break  # those before it are read first
            consumer.at, consumer.fresh = number, False
        if found:
            self._average += 0.2 * (sum(each.size for each in found) / len(found) - self._average)
        return found

    def _gone(self, name: str, offset: int, info: Any) -> int | None:
        """Return the offset at which to continue if some messages after `offset` are lost; None if all are there."""
        if info is None:
            state, restart = "is gone", None
        elif info.state.last_seq < offset:
            state, restart = f"ends with {info.state.last_seq}: it was created again, or has lost its end", 0
        elif info.state.first_seq > offset + 1:
            state, restart = f"begins with {info.state.first_seq} now", info.state.first_seq - 1
        else:
            return None
        what = f"messages behind {offset} of stream {name!r} were removed before they were read: the stream {state}"
        if not self._options.skip:
            remedy = (
                "let the stream keep what is not in a checkpoint yet (its limits), let one job only have trim: true, "
                "and store streams in files; or set skip: true to go on with what is there"
            )
            raise SourceError(what, where=self._where, remedy=remedy)
        if (name, offset) not in self._skipped:
            self._skipped.add((name, offset))
            _LOG.warning("%s: %s; going on with what is there", self._where, what)
        if restart is None:
            raise BrokerAway(f"stream {name!r} is gone")
        return restart

    def _record(self, name: str, number: int, data: bytes) -> Fetched:
        try:
            row = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            what = f"message {number} of stream {name!r} is no JSON object: {error}"
            if not self._options.skip:
                remedy = "correct what writes it, or set skip: true to leave such messages out"
                raise SourceError(what, where=self._where, remedy=remedy) from error
            _LOG.warning("%s: %s; it is left out", self._where, what)
            return Fetched(number, None)
        return Fetched(number, row, 64 + len(data))

    # ---------------------------------------------------------------------------------------------- the rest

    def acknowledge(self, position: Mapping[str, Offset]) -> None:
        """See `BrokerClient.acknowledge`."""
        if self._options.trim:
            self._ask(self._purge(position))

    async def _purge(self, position: Mapping[str, Offset]) -> None:
        streams = await self._streams()
        for name, offset in position.items():
            info = await _info(streams, name)
            if info is not None and not info.config.sealed and info.state.first_seq <= offset:
                await streams.purge_stream(name, seq=offset + 1)

    def close(self) -> None:
        """See `BrokerClient.close`."""
        if self._loop is None:
            return
        with suppress(errors.Error, OSError, TimeoutError):
            if self._connection is not None:
                self._loop.run_until_complete(asyncio.wait_for(self._connection.close(), 1.0))
        self._connection = None
        for task in (left := asyncio.all_tasks(self._loop)):
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.close()
        self._loop = None


def _config(**start: Any) -> api.ConsumerConfig:
    """Return the configuration of a consumer that the server forgets soon."""
    return api.ConsumerConfig(ack_policy=api.AckPolicy.NONE, inactive_threshold=UNUSED_S, mem_storage=True, **start)


async def _info(streams: Any, name: str) -> Any:
    """Return the information about a stream; None if it does not exist."""
    try:
        return await streams.stream_info(name)
    except js_errors.NotFoundError:
        return None


def _login(servers: Sequence[str]) -> dict[str, str]:
    """Return user and password, or a token, of URLs that agree on them; nats-py would not decode their ``%40``."""
    found = {(parts.username, parts.password) for parts in map(urlsplit, servers)}
    (user, password) = next(iter(found)) if len(found) == 1 else (None, None)
    if user is None:
        return {}
    return {"token": unquote(user)} if password is None else {"user": unquote(user), "password": unquote(password)}
