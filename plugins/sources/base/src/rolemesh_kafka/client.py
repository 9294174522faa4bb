"""The Kafka part of the source: its calls, its errors, and the meaning of an offset.

An offset is Kafka's offset of the next message. Offsets have gaps where transactions end or were aborted, and in
compacted topics, so a gap is no loss. A broker says when an offset is no longer, or not any more, in its log.
"""

from __future__ import annotations

import logging
import math
import re
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_sources import Offset, SourceError
from rolemesh_sources.brokers import BUFFER_BYTES, BrokerAway, BrokerClient, Fetched, Look

__all__ = ["TopicsClient", "TopicsOptions", "settings"]

_LOG = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(dict[str, Any]).decode
CONNECT_S = 10.0
TRY_S = 0.2
ANSWER_S = 10.0
MOST = 1024
FETCH_BYTES = 256 << 10
"""Bytes of one answer for a partition. A partition whose records are not read fast enough is fetched again later."""
OLDEST, NEWEST = -2, -1
"""Times that stand for the ends of a partition, in Kafka's protocol."""
REFUSED = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    )
)
MEMBERS = frozenset((KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS))
"""Answers to a commit for a group that others are members of."""
BROKEN_OFF = ("Broker transport failure", "Timed out")
"""Parts of librdkafka's text for an authentication in which the broker went away."""
CLOSED = ("Broken pipe", "Connection reset", "Disconnected")
"""Parts of its texts for a connection that the broker closes."""
ABSENT = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION))
OUT_OF_RANGE = frozenset((KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION))


class TopicsOptions(msgspec.Struct, frozen=True):
    """The settings of `KafkaOptions`, without those of librdkafka."""

    streams: tuple[str, ...]
    form: str
    meta: Mapping[Any, str]
    until: str | None
    group: str | None
    skip: bool


def settings(servers: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of librdkafka's consumer: that of the source, which `config` adds to.

    Its queue of fetched messages is half as large as the source's own, and no deeper for a partition than one fetch.
    """
    return {
        "fetch.message.max.bytes": FETCH_BYTES,
        "fetch.wait.max.ms": 100,
        "log_level": 2,
        "reconnect.backoff.max.ms": 1000,
        **config,
        "bootstrap.servers": servers,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": BUFFER_BYTES // 2 >> 10,
        "queued.min.messages": MOST,
    }


class TopicsClient(BrokerClient):
    """See `BrokerClient`. All partitions are assigned by hand, with the offsets that the source asks for."""

    def __init__(self, servers: str, config: Mapping[str, Any], options: TopicsOptions) -> None:
        """Create the client. Raises `SourceError` for settings that librdkafka does not take."""
        self._where, self._options = servers, options
        self._config = settings(servers, config) | {"error_cb": self._on_error, "logger": _LOG}
        self._consumer: Consumer | None = None
        self._at: dict[str, int] = {}
        self._idle: set[str] = set()
        self._met = False
        self._error: KafkaError | None = None
        self._last: KafkaError | None = None
        self._skipped: set[tuple[str, int]] = set()
        self._made().close()

    @property
    def where(self) -> str:
        """See `BrokerClient.where`."""
        return self._where

    # ------------------------------------------------------------------------------------------------ connection

    def _made(self) -> Consumer:
        try:
            return Consumer(self._config)
        except (KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            remedy = "see the option config of the source kafka, and the settings of librdkafka"
            raise SourceError(f"librdkafka says: {reason}", where=self._where, remedy=remedy) from None

    def _connected(self) -> Consumer:
        """Return the consumer, and connect if there is none."""
        if self._consumer is None:
            self._error = self._last = None
            self._consumer = self._made()
            until = time.monotonic() + CONNECT_S
            while True:
                try:
                    self._consumer.list_topics("__consumer_offsets", timeout=TRY_S)
                    self._met = True
                    break
                except KafkaException as error:
                    self._consumer.poll(0)  # calls `_on_error`; nothing is assigned yet
                    self._check()
                    if time.monotonic() > until:
                        raise self._failed(error.args[0]) from error
        return self._consumer

    def _on_error(self, error: KafkaError) -> None:
        """Take an error that no call returns. librdkafka goes on after the others by itself."""
        code = error.code()
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED and self._options.group is None:
            return  # librdkafka looks for the coordinator of any group
        if (code in REFUSED and not _is_away(error)) or (code == KafkaError._ALL_BROKERS_DOWN and self._error is None):
            self._error = error
        elif code != KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def _check(self) -> None:
        """Raise what makes it useless to ask."""
        if (error := self._error) is not None:
            raise self._failed(error if error.code() in REFUSED or self._last is None else self._last)

    def _failed(self, error: KafkaError) -> Exception:
        """Return the error as `BrokerAway` or `SourceError`, without a password in the message."""
        code = error.code()
        if not self._met and (code == KafkaError._ALL_BROKERS_DOWN or any(part in error.str() for part in CLOSED)):
            return BrokerAway(f"{error.str()}: connections are closed at once, as with a wrong security.protocol")
        if "certificate verify failed" in error.str():
            what = f"the broker's certificate is not accepted: {self._why(error.str())}"
            if self._met:
                return BrokerAway(what)  # it is renewed, or another broker answers
            remedy = "let the broker have a valid certificate, or name its authority: ssl.ca.location in config"
            return SourceError(what, where=self._where, remedy=remedy)
        if code in REFUSED and not _is_away(error):
            remedy = "give user and password in the option config, as variables, and let the user read the topics"
            return SourceError(f"the broker refuses us: {error.str()}", where=self._where, remedy=remedy)
        if code in MEMBERS:
            what = f"offsets of the group {self._options.group!r} cannot be committed: {error.str()}"
            return SourceError(what, where=self._where, remedy="name a group that no consumer is a member of")
        return BrokerAway(error.str())

    def _why(self, told: str) -> str:
        """Return why the certificate of the broker that librdkafka has `told` of is not accepted. librdkafka does not
        say so: OpenSSL looks at it once more, with the same authorities."""
        context = ssl.create_default_context()
        try:
            if (place := str(self._config.get("ssl.ca.location", "probe"))) != "probe":
                context = ssl.create_default_context(cafile=place)
            host, port = re.findall(r"//\[?([^/]+?)\]?:(\d+)/", told)[0]
            with (
                socket.create_connection((host, int(port)), TRY_S) as link,
                context.wrap_socket(link, server_hostname=host),
            ):
                return told
        except ssl.SSLCertVerificationError as error:
            return f"{host}:{port}: {error.verify_message}"
        except (OSError, IndexError):
            return told

    @contextmanager
    def _asking(self) -> Iterator[Consumer]:
        """The consumer, connected. Errors inside become `BrokerAway` or `SourceError`."""
        try:
            yield self._connected()
        except KafkaException as error:
            self._check()
            raise self._failed(error.args[0]) from error

    # ------------------------------------------------------------------------------------------- what there is

    def look(self) -> Look:
        """See `BrokerClient.look`."""
        until, streams = self._options.until, self._options.streams
        with self._asking() as consumer:
            if until in (None, "end") and not any(set("*?[") & set(name) for name in streams):
                found = [consumer.list_topics(name, timeout=ANSWER_S).topics[name] for name in streams]
            else:
                found = list(consumer.list_topics(timeout=ANSWER_S).topics.values())
        for topic in found:
            if topic.error is not None and topic.error.code() not in ABSENT:
                raise self._failed(topic.error)
        over = until == "end" or any(topic.topic == until and topic.error is None for topic in found)
        ours = (topic for topic in found if topic.topic != until and self._is_ours(topic.topic))
        names = [f"{topic.topic}/{number}" for topic in ours for number in topic.partitions]
        return Look({name: at for name, at in self._offsets(names, NEWEST).items() if at >= 0}, over)

    def _is_ours(self, topic: str) -> bool:
        """Whether the source reads the topic. Patterns match no topics of Kafka's own, such as __consumer_offsets."""
        given = self._options.streams
        return topic in given or (not topic.startswith("__") and any(fnmatchcase(topic, each) for each in given))

    def _offsets(self, partitions: Iterable[str], ms: int) -> dict[str, int]:
        """Return the offsets of the first messages at this time or later; -1 where there is none. Partitions that are
        gone are left out."""
        asked = [_place(name, ms) for name in partitions]
        if not asked:
            return {}
        with self._asking() as consumer:
            found = consumer.offsets_for_times(asked, timeout=ANSWER_S)
        for each in found:
            if each.error is not None and each.error.code() not in ABSENT:
                raise self._failed(each.error)
        return {f"{each.topic}/{each.partition}": each.offset for each in found if each.error is None}

    def find(self, partition: str, start: datetime | int | str) -> Offset:
        """See `BrokerClient.find`. A message's number is its offset."""
        if isinstance(start, datetime):
            at = self._offsets([partition], math.ceil(start.timestamp() * 1000)).get(partition, -1)
            return at if at >= 0 else self._offsets([partition], NEWEST).get(partition)
        if not str(start).isdecimal():
            remedy = f"start: {{{partition}: 120}}"
            raise SourceError(f"{start!r} is no offset of {partition!r}", where=self._where, remedy=remedy)
        return int(start)

    def behind(self, newest: Offset, offset: Offset) -> float:
        """See `BrokerClient.behind`. The unit is messages, with those that transactions leave out."""
        return float(max(newest - (offset or 0), 0))

    # ------------------------------------------------------------------------------------------------ records

    def fetch(self, asked: Mapping[str, Offset], wait_s: float) -> Mapping[str, Sequence[Fetched]]:
        """See `BrokerClient.fetch`."""
        if unknown := [name for name, at in asked.items() if at is None]:
            first = self._offsets(unknown, OLDEST)
            return {name: [Fetched(at, None)] for name, at in first.items()}
        with self._asking() as consumer:
            self._assign(consumer, asked)
            message = consumer.poll(wait_s)
            messages = [] if message is None else [message, *consumer.consume(MOST, 0)]
        self._check()
        found: dict[str, list[Fetched]] = {}
        for message in messages:
            name = f"{message.topic()}/{message.partition()}"
            error = message.error()
            if message.topic() is None and error is not None:
                self._on_error(error)
            elif name not in asked or name not in self._at:
                self._at.pop(name, None)  # the next call assigns it again
            else:
                try:
                    records = self._of(name, message)
                except (BrokerAway, SourceError):
                    self._at.clear()
                    if not found:
                        raise
                    break  # those before it are read first
                if records:
                    found.setdefault(name, []).extend(records)
                    self._at[name] = records[-1].offset
                if error is not None and error.code() in OUT_OF_RANGE:
                    self._at.pop(name)  # librdkafka fetches no more of it before it is assigned again
        return found

    def _assign(self, consumer: Consumer, asked: Mapping[str, int]) -> None:
        """Let librdkafka fetch `asked`, and nothing of the other partitions."""
        changed = any(self._at.get(name) != at for name, at in asked.items())
        if changed:
            self._at |= asked
            consumer.assign([_place(name, at) for name, at in self._at.items()])
        idle = self._at.keys() - asked.keys()
        if changed or idle != self._idle:
            consumer.pause([_place(name) for name in idle])
            consumer.resume([_place(name) for name in asked])
            self._idle = idle

    def _not_of_a_topic(self, message: Message) -> None:
        error = message.error()
        if error is not None and not (
            error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._options.group
        ):
            raise self._failed(error)

    def _of(self, name: str, message: Message) -> list[Fetched]:
        """Return what a message says: a record, an offset without one, or nothing."""
        at, offset, error = self._at[name], message.offset(), message.error()
        if error is None:
            return [self._record(name, message)] if offset is not None and offset >= at else []
        if error.code() == KafkaError._PARTITION_EOF:
            return [Fetched(offset, None)] if offset is not None and offset > at else []
        if error.code() in OUT_OF_RANGE:
            restart = self._gone(name, at)
            return [] if restart == at else [Fetched(restart, None)]
        if error.code() in ABSENT:
            raise BrokerAway(f"{name}: {error.str()}")
        raise self._failed(error)

    def _gone(self, name: str, at: int) -> int:
        """The broker says that it has no message from `at` on: return where to continue."""
        first, end = (self._offsets([name], ms).get(name, -1) for ms in (OLDEST, NEWEST))
        if first <= at <= end:
            return at
        state = f"begins with {first} now" if at < first else f"ends with {end}: it was created again, or cut"
        what = f"messages from {at} on of partition {name!r} were removed before they were read: it {state}"
        if not self._options.skip:
            remedy = (
                "let the topic keep what is not in a checkpoint yet (retention.ms, retention.bytes), or set skip: true "
                "to go on with what is there"
            )
            raise SourceError(what, where=self._where, remedy=remedy)
        if (name, at) not in self._skipped:
            self._skipped.add((name, at))
            _LOG.warning("%s: %s; going on with what is there", self._where, what)
        return first

    def _record(self, name: str, message: Message) -> Fetched:
        offset, value, key = message.offset() or 0, message.value(), message.key()
        size = 64 + len(value or b"") + len(key or b"")
        try:
            row = _row(self._options.form, self._options.meta, message)
        except (*UNDECODABLE, _NoRecord) as error:
            what = f"message {offset} of partition {name!r} does not have the form {self._options.form!r}: {error}"
            if not self._options.skip:
                remedy = "correct what writes it, give another form, or set skip: true to leave such messages out"
                raise SourceError(what, where=self._where, remedy=remedy) from error
            _LOG.warning("%s: %s; it is left out", self._where, what)
            row = None
        return Fetched(offset + 1, row, size)

    # ---------------------------------------------------------------------------------------------- the rest

    def acknowledge(self, position: Mapping[str, Offset]) -> None:
        """See `BrokerClient.acknowledge`."""
        if self._options.group is not None:
            with self._asking() as consumer:
                places = [_place(name, at) for name, at in position.items()]
                for each in consumer.commit(offsets=places, asynchronous=False) or []:
                    if each.error is not None and each.error.code() not in ABSENT:
                        raise self._failed(each.error)

    def close(self) -> None:
        """See `BrokerClient.close`."""
        consumer, self._consumer = self._consumer, None
        self._at, self._idle = {}, set()
        if consumer is not None:
            consumer.close()


class _NoRecord(Exception):
    """A message that cannot be a record."""


def _place(partition: str, offset: int = -1001) -> TopicPartition:
    topic, _, number = partition.rpartition("/")
    return TopicPartition(topic, int(number), offset)


def _row(form: str, meta: Mapping[str, str], message: Message) -> dict[str, Any]:
    """Return a message as a row. Raises `_NoRecord` or a decoder's error."""
    value: Any = message.value()
    headers: Any = message.headers()

    def text(data: Any) -> Any:
        return data if form == "bytes" or data is None else data.decode()

    if form != "json":
        row = {"value": text(value)}
    elif value is None:
        raise _NoRecord("it has no value (a tombstone)")
    else:
        row = _decode(value)
    for what, column in meta.items():
        if column in row:
            raise _NoRecord(f"its value has the field {column!r} of meta, too")
        if what == "key":
            row[column] = text(message.key())
        elif what == "headers":
            row[column] = _by_name([(name, text(data)) for name, data in headers or ()])
        elif what == "time":
            kind, ms = message.timestamp()
            row[column] = None if kind == TIMESTAMP_NOT_AVAILABLE else ms / 1000
        else:
            row[column] = getattr(message, what)()
    return row


def _is_away(error: KafkaError) -> bool:
    """Return whether an error of the authentication says only that the broker went away meanwhile."""
    return error.code() == KafkaError._AUTHENTICATION and any(part in error.str() for part in BROKEN_OFF)


def _by_name(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return headers by name. A name that a message has several times has a list of its values."""
    names = [name for name, _ in pairs]
    return {
        name: [value for other, value in pairs if other == name] if names.count(name) > 1 else value
        for name, value in pairs
    }
