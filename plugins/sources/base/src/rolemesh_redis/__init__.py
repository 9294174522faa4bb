"""The source `redis`: streams of a Redis or Valkey server. Each stream is a partition."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rolemesh_sources import Reader
from rolemesh_sources.brokers import BrokerClient, BrokerOptions, BrokerSource, server_url

__all__ = ["RedisOptions", "RedisSource"]


class RedisOptions(BrokerOptions):
    """The server, the streams, the form of a record, and the handling of missing data."""

    url: str = Field(
        description="redis://[[user]:password@]host[:port][/database], rediss://… for TLS, "
        "unix://[[user]:password@]/path[?db=database]. Give a password as a variable: ${REDIS_URL}."
    )
    field: str | None = Field(
        default="data",
        description="The field of an entry that has the record, as a JSON object; null: each field is a text column.",
    )
    until: str | None = Field(
        default=None,
        description="The end: 'end' when all present entries are read, or a key whose existence marks the end. "
        "null: never.",
    )
    trim: bool = Field(
        default=False, description="Remove records from the streams when a checkpoint on disk contains their results."
    )
    skip: bool = Field(
        default=False,
        description="Skip entries without a JSON object in `field`, and entries that were trimmed before they were "
        "read, with a warning instead of an error.",
    )
    ca: str | None = Field(
        default=None,
        description="For rediss://: a file with the trusted certificates, relative to the job file's folder; "
        "null: the system's.",
    )

    @field_validator("url")
    @classmethod
    def _is_one(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        return url if url.startswith("unix") else server_url(url)


class RedisSource(BrokerSource):
    """Entries of Redis Streams, read without a consumer group, because the job's snapshots hold its position."""

    Options = RedisOptions
    options: RedisOptions
    needs: ClassVar[str] = "redis"

    def client(self, reader: Reader) -> BrokerClient:
        """See `BrokerSource.client`."""
        from rolemesh_redis.client import StreamsClient, StreamsOptions

        options = self.options
        ca = None if options.ca is None else str(Path(reader.base, options.ca))
        return StreamsClient(
            options.url,
            StreamsOptions(
                tuple(options.streams), options.field, options.until, trim=options.trim, skip=options.skip, ca=ca
            ),
        )
