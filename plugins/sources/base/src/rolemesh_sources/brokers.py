"""The base of sources that ask a broker over the network: a thread fetches ahead, so the rank never waits.

While the broker is away the thread asks again, and says so in the rank's log; no rank fails for it.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import AwareDatetime, BaseModel, Field, field_validator

from rolemesh_sources import Offset, Reader, Records, Source, SourceError

__all__ = ["BrokerAway", "BrokerClient", "BrokerOptions", "BrokerSource", "Fetched", "Look", "server_url"]

_LOG = logging.getLogger(__name__)
BUFFER_BYTES = 32 << 20
"""Most bytes that the thread fetches ahead, of all partitions together. Each partition may exceed it by one answer."""
FETCH_WAIT_S = 0.1
"""Seconds that the broker may wait for records. A rank that asks at another offset waits as long, at most."""
MOST_AHEAD = 4096
"""Most records of a partition that the thread fetches ahead. Above this or `BUFFER_BYTES`, it fetches again when half
of them are read."""
LOOK_S = 1.0
PAUSE_S = (0.05, 2.0)
REMIND_S = 60.0
CLOSE_S = 5.0


class BrokerAway(Exception):
    """The broker does not answer, or cannot yet. The source asks again."""


class Look(msgspec.Struct, frozen=True):
    """The state of a broker.

    `newest` is the offset behind the newest record, by partition; None for a partition without records. `over` says
    that no records come any more. A client finds out `over` before it reads `newest`.
    """

    newest: Mapping[str, Offset]
    over: bool = False


class Fetched(msgspec.Struct, frozen=True):
    """A record as `row`, the offset behind it, and its approximate `size` in bytes.

    The row None says that no record lies before the offset.
    """

    offset: Offset
    row: Mapping[str, Any] | None
    size: int = 0


class BrokerClient(ABC):
    """The connection of a source to its broker.

    One thread of the source calls all methods but `behind`, and they may take as long as the network does. A method
    that raises `BrokerAway` is called again later. `SourceError` ends the rank.
    """

    @property
    @abstractmethod
    def where(self) -> str:
        """The broker's address without a password, for messages."""

    @abstractmethod
    def look(self) -> Look:
        """The newest records of the broker now."""

    @abstractmethod
    def fetch(self, asked: Mapping[str, Offset], wait_s: float) -> Mapping[str, Sequence[Fetched]]:
        """Records from these offsets on, by partition. Wait for one at most `wait_s` seconds.

        For the offset None the first answer is the offset of the first record, without a row. A rank that starts again
        then asks for the records that it had read, even if the broker has trimmed the partition.
        """

    @abstractmethod
    def find(self, partition: str, start: datetime | int | str) -> Offset:
        """The offset of the first record of `partition` at the time `start` or later (behind the newest, if there is
        none), or of the record with the number or id `start`. None for a partition without records.
        """

    @abstractmethod
    def behind(self, newest: Offset, offset: Offset) -> float:
        """Amount of data between `offset` and `newest`, the offset behind the newest record, in the broker's unit."""

    @abstractmethod
    def acknowledge(self, position: Mapping[str, Offset]) -> None:
        """See `Source.acknowledge`."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, at the end or while the broker is away. The next call opens a new connection."""


class _Ahead:
    """Fetched records of a partition. The rank reads next at `at`, and the thread fetches next at `end`."""

    def __init__(self, offset: Offset) -> None:
        self.at = self.end = offset
        self.records: deque[Fetched] = deque()
        self.full = False


def server_url(url: str) -> str:
    """Return the URL of a server. Raises ValueError if a URL would end inside the password, at a ``/``, ``?`` or
    ``#``: a client would then connect to another place."""
    parts = urlsplit(url)
    if "@" in f"{parts.path}{parts.query}{parts.fragment}" or parts.fragment:
        raise ValueError("has a character that must be written as a code: / is %2F, ? is %3F, # is %23, @ is %40")
    parts.port  # noqa: B018 - raises ValueError if it is no number
    return url


class BrokerOptions(BaseModel, extra="forbid"):
    """Options that every `BrokerSource` has."""

    streams: list[str] = Field(
        min_length=1,
        description="Names, or patterns (clicks*), of streams; each is a partition. They need not exist yet.",
    )
    start: Literal["oldest", "newest"] | AwareDatetime | dict[str, int | str] = Field(
        default="oldest",
        description="Where a new job begins. newest: with records that arrive from now on; a time with its zone "
        "(2026-11-29T08:00:00Z): with the first record from then on; {partition: number or id}: with this record, and "
        "with the oldest of other partitions. Partitions that come later begin with their oldest record.",
    )

    @field_validator("streams")
    @classmethod
    def _differ(cls, streams: list[str]) -> list[str]:
        if len(set(streams)) < len(streams):
            raise ValueError("names a stream twice")
        return streams


class BrokerSource(Source):
    """Base of sources with a `BrokerClient`, which `client` makes. Its `Options` derive from `BrokerOptions`."""

    Options = BrokerOptions
    options: BrokerOptions

    @abstractmethod
    def client(self, reader: Reader) -> BrokerClient:
        """The client, which has not been connected yet. Raises `SourceError` for options that cannot work."""

    def open(self, reader: Reader) -> None:
        """See `Source.open`. It waits for the broker's first answer, or the first sign that it is away."""
        self._reader, self._client = reader, self.client(reader)
        self._lock = threading.Lock()
        self._ahead: dict[str, _Ahead] = {}
        self._bytes, self._full = 0, False
        self._look, self._looked = Look({}), float("-inf")
        self._begin: Mapping[str, Offset] | None = None
        self._resumed = False
        self._acknowledged: dict[str, Offset] = {}
        self._failed: SourceError | None = None
        self._away_since: float | None = None
        self._tried, self._wake, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"broker {self._client.where}", daemon=True)
        self._thread.start()
        self._tried.wait()
        self._check()

    # ------------------------------------------------------------------------------------------ asked by the rank

    def resume(self, position: Mapping[str, Offset]) -> None:
        """See `Source.resume`."""
        self._resumed = True

    def partitions(self) -> Sequence[str]:
        """See `Source.partitions`. The list is at most a second old."""
        return sorted(self._look.newest)

    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        """See `Source.read`. Return fetched records, or make the thread fetch from `offset` on."""
        if offset is None and not self._resumed and (begin := (self._begin or {}).get(partition)) is not None:
            return Records((), begin)
        with self._lock:
            ahead = self._ahead.get(partition)
            if ahead is None or ahead.at != offset or not ahead.records:
                self._check()  # what came before has been read
            if ahead is None or ahead.at != offset:
                self._bytes -= sum(each.size for each in ahead.records) if ahead else 0
                self._ahead[partition] = _Ahead(offset)
                self._wake.set()
                return Records((), offset)
            rows: list[Mapping[str, Any]] = []
            while ahead.records and len(rows) < max_rows:
                record = ahead.records.popleft()
                ahead.at = record.offset
                self._bytes -= record.size
                if record.row is not None:
                    rows.append(record.row)
                elif not rows:
                    break  # a place of its own, where a rank that starts again begins
            return Records(rows, ahead.at)

    def ended(self, position: Mapping[str, Offset]) -> bool:
        """See `Source.ended`."""
        look = self._look
        return look.over and not any(self._left(look, position).values())

    def lag(self, position: Mapping[str, Offset]) -> float | None:
        """See `Source.lag`. The lag of the partition that is furthest behind; None while the broker is away."""
        return None if self.waiting() else max(self._left(self._look, position).values(), default=0.0)

    def waiting(self) -> str:
        """See `Source.waiting`."""
        return "" if self._away_since is None else f"the broker {self._client.where} is away"

    def rank_of(self, partition: str, world_size: int) -> int:
        """See `Source.rank_of`. Ranks share listed streams in turn, and so the partitions ``stream/number`` of each."""
        listed = self.options.streams
        stream, _, number = (partition, "", "0") if partition in listed else partition.rpartition("/")
        if stream in listed and number.isdecimal():
            return (listed.index(stream) + int(number)) % world_size
        return super().rank_of(partition, world_size)

    def _left(self, look: Look, position: Mapping[str, Offset]) -> dict[str, float]:
        ranks, rank = self._reader.world_size, self._reader.rank
        own = {name: end for name, end in look.newest.items() if self.rank_of(name, ranks) == rank}
        return {n: self._client.behind(end, position.get(n)) for n, end in own.items() if end is not None}

    def acknowledge(self, position: Mapping[str, Offset]) -> None:
        """See `Source.acknowledge`. The thread tells the broker."""
        with self._lock:
            self._acknowledged |= {name: offset for name, offset in position.items() if offset is not None}

    def close(self) -> None:
        """See `Source.close`. Tell the broker what was acknowledged, if it answers."""
        self._closed.set()
        self._wake.set()
        self._thread.join(CLOSE_S)

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    # ------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        pause_s = PAUSE_S[0]
        try:
            while not self._closed.is_set():
                try:
                    self._turn()
                except BrokerAway as away:
                    self._client.close()
                    self._say(away)
                    self._tried.set()
                    self._closed.wait(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_S[1])
                else:
                    self._say(None)
                    self._tried.set()
                    pause_s = PAUSE_S[0]
            if self._away_since is None:
                self._tell()
        except BrokerAway:
            pass  # at the end: a later job, or the next acknowledgement, says the same
        except SourceError as error:
            self._failed = error
        except Exception as error:
            _LOG.exception("the client of the broker %s has failed", self._client.where)
            what, remedy = f"the client of the broker has failed: {error!r}", "the traceback is in the rank's log"
            self._failed = SourceError(what, where=self._client.where, remedy=remedy)
        finally:
            self._tried.set()
            self._client.close()

    def _turn(self) -> None:
        """Look at the broker, acknowledge, and fetch, until `close`."""
        if (now := time.monotonic()) >= self._looked + LOOK_S:
            look = self._client.look()
            if self._begin is None:
                self._begin = self._beginning(look)
            self._look, self._looked = look, now
        self._tell()
        with self._lock:
            self._full = self._bytes >= (BUFFER_BYTES // 2 if self._full else BUFFER_BYTES)
            for each in self._ahead.values():
                each.full = len(each.records) >= (MOST_AHEAD // 2 if each.full else MOST_AHEAD)
            known = self._ahead.items()
            asked = {name: each.end for name, each in known if not (each.full or (self._full and each.records))}
            self._wake.clear()
        if not asked:
            self._wake.wait(PAUSE_S[0])
            return
        for name, found in self._client.fetch(asked, FETCH_WAIT_S).items():
            with self._lock:
                ahead = self._ahead[name]
                if found and ahead.end == asked[name]:
                    ahead.records += found
                    ahead.end = found[-1].offset
                    self._bytes += sum(each.size for each in found)

    def _beginning(self, look: Look) -> Mapping[str, Offset]:
        """Return the offsets at which a new job begins, for the partitions that are there at its start. It reads the
        others from their oldest record."""
        start = self.options.start
        if start == "newest":
            return look.newest
        if isinstance(start, datetime):
            return {name: self._client.find(name, start) for name in look.newest}
        if not isinstance(start, dict):
            return {}
        if missing := sorted(start.keys() - look.newest.keys()):
            _LOG.warning("%s: start names partitions that are not there: %s", self._client.where, ", ".join(missing))
        return {name: self._client.find(name, at) for name, at in start.items() if name in look.newest}

    def _tell(self) -> None:
        with self._lock:
            position, self._acknowledged = self._acknowledged, {}
        if not position:
            return
        try:
            self._client.acknowledge(position)
        except BrokerAway:
            with self._lock:
                self._acknowledged = position | self._acknowledged
            raise

    def _say(self, away: BrokerAway | None) -> None:
        now, since = time.monotonic(), self._away_since
        if away is None:
            if since is not None:
                _LOG.warning("the broker %s is back after %.1f s", self._client.where, now - since)
            self._away_since, self._said = None, now
        elif since is None or now >= self._said + REMIND_S:
            self._away_since, self._said = now if since is None else since, now
            what = "the broker %s is away (%s); the rank waits, and asks again"
            _LOG.warning(what, self._client.where, away)
