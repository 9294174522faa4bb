"""The source `redis`: streams of a Redis or Valkey server, each a partition."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

from rolemesh_durable.brokers import BrokerSource
from rolemesh_durable.sources import Reader
from rolemesh_redis.client import StreamsClient, StreamsOptions

__all__ = ["RedisOptions", "RedisSource"]


class RedisOptions(BaseModel, extra="forbid"):
    """Which streams of which server, what a record is, and what may be missing."""

    url: str = Field(
        description="redis://[[user]:password@]host[:port][/database], rediss://… for TLS, unix:///path. Give a "
        "password as a variable: ${REDIS_URL}."
    )
    streams: list[str] = Field(
        min_length=1,
        description="Names, or patterns (clicks:*), of streams; each is a partition. They need not exist yet.",
    )
    field: str | None = Field(
        default="data",
        description="The field of an entry that has the record, as a JSON object; null: each field is a text column.",
    )
    start: Literal["oldest", "newest"] = Field(
        default="oldest", description="Where a new job begins in a stream; newest: with what comes from now on."
    )
    until: str | None = Field(
        default=None,
        description="The end: 'end', when all is read that is there; else a key whose existence says that nothing "
        "more comes. null: never.",
    )
    trim: bool = Field(
        default=False,
        description="Records are removed from the streams once a checkpoint on disk has what was made of them.",
    )
    skip: bool = Field(
        default=False,
        description="Entries that have no JSON object in `field`, and what was trimmed before it was read, are left "
        "out with a warning instead of an error.",
    )
    ca: str | None = Field(
        default=None,
        description="For rediss://: a file with the certificates that are trusted, relative to the job file's folder; "
        "null: the system's.",
    )

    @field_validator("url")
    @classmethod
    def _is_one(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        return url

    @field_validator("streams")
    @classmethod
    def _differ(cls, streams: list[str]) -> list[str]:
        if len(set(streams)) < len(streams):
            raise ValueError("names a stream twice")
        return streams


class RedisSource(BrokerSource):
    """Entries of Redis Streams, read without a consumer group: where a job is, its snapshots say."""

    Options = RedisOptions
    options: RedisOptions

    def client(self, reader: Reader) -> StreamsClient:
        """See `BrokerSource.client`."""
        options = self.options
        ca = None if options.ca is None else str(Path(reader.base, options.ca))
        return StreamsClient(
            options.url,
            StreamsOptions(
                tuple(options.streams),
                options.field,
                options.start == "newest",
                options.until,
                trim=options.trim,
                skip=options.skip,
                ca=ca,
            ),
        )

    def rank_of(self, partition: str, world_size: int) -> int:
        """See `Source.rank_of`: streams that are listed by name are shared out in turn, others by a hash."""
        if partition in self.options.streams:
            return self.options.streams.index(partition) % world_size
        return super().rank_of(partition, world_size)
