"""The source `nats`: streams of NATS JetStream, each a partition."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

from rolemesh_durable.brokers import BrokerSource
from rolemesh_durable.sources import Reader
from rolemesh_nats.client import JetStreamClient, JetStreamOptions

__all__ = ["NatsOptions", "NatsSource"]


class NatsOptions(BaseModel, extra="forbid"):
    """Which streams of which servers, and what may be missing."""

    url: str = Field(
        description="nats://[user:password@|token@]host[:port], tls://… for TLS; several with commas. Give "
        "a password as a variable: ${NATS_URL}."
    )
    streams: list[str] = Field(
        min_length=1,
        description="Names, or patterns (CLICKS-*), of streams; each is a partition. They need not exist yet.",
    )
    start: Literal["oldest", "newest"] = Field(
        default="oldest", description="Where a new job begins in a stream; newest: with what comes from now on."
    )
    until: Literal["end", "sealed"] | None = Field(
        default=None,
        description="The end: 'end', when all is read that is there; 'sealed', when the streams are sealed as well. "
        "null: never.",
    )
    trim: bool = Field(
        default=False,
        description="Messages are purged from the streams once a checkpoint on disk has what was made of them.",
    )
    skip: bool = Field(
        default=False,
        description="Messages that are no JSON object, and what was removed before it was read, are left out with a "
        "warning instead of an error.",
    )
    credentials: str | None = Field(
        default=None, description="A .creds file (JWT and seed), relative to the job file's folder."
    )
    ca: str | None = Field(
        default=None,
        description="For tls://: a file with the certificates that are trusted, relative to the job file's folder; "
        "null: the system's.",
    )

    @field_validator("url")
    @classmethod
    def _is_one(cls, url: str) -> str:
        if any(urlsplit(each).scheme not in ("nats", "tls", "ws", "wss") for each in url.split(",")):
            raise ValueError("must begin with nats://, tls://, ws:// or wss://, each of several")
        return url

    @field_validator("streams")
    @classmethod
    def _differ(cls, streams: list[str]) -> list[str]:
        if len(set(streams)) < len(streams):
            raise ValueError("names a stream twice")
        return streams


class NatsSource(BrokerSource):
    """Messages of JetStream's streams, read without a durable consumer: where a job is, its snapshots say."""

    Options = NatsOptions
    options: NatsOptions

    def client(self, reader: Reader) -> JetStreamClient:
        """See `BrokerSource.client`."""
        options = self.options
        paths = (None if path is None else str(Path(reader.base, path)) for path in (options.credentials, options.ca))
        newest = options.start == "newest"
        more = JetStreamOptions(tuple(options.streams), newest, options.until, options.trim, options.skip, *paths)
        return JetStreamClient(options.url, more)

    def rank_of(self, partition: str, world_size: int) -> int:
        """See `Source.rank_of`: streams that are listed by name are shared out in turn, others by a hash."""
        if partition in self.options.streams:
            return self.options.streams.index(partition) % world_size
        return super().rank_of(partition, world_size)
