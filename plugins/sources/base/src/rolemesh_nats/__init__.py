"""The source `nats`: streams of NATS JetStream. Each stream is a partition."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rolemesh_sources import Reader
from rolemesh_sources.brokers import BrokerClient, BrokerOptions, BrokerSource, server_url

__all__ = ["NatsOptions", "NatsSource"]


class NatsOptions(BrokerOptions):
    """The servers, the streams, and the handling of missing data."""

    url: str = Field(
        description="nats://[user:password@|token@]host[:port], tls://… for TLS; several with commas. Give "
        "a password as a variable: ${NATS_URL}."
    )
    until: Literal["end", "sealed"] | None = Field(
        default=None,
        description="The end: 'end' when all present messages are read; 'sealed' when also the streams are sealed. "
        "null: never.",
    )
    trim: bool = Field(
        default=False, description="Purge messages from the streams when a checkpoint on disk contains their results."
    )
    skip: bool = Field(
        default=False,
        description="Skip messages that are not JSON objects, and messages that were removed before they were read, "
        "with a warning instead of an error.",
    )
    credentials: str | None = Field(
        default=None, description="A .creds file (JWT and seed), relative to the job file's folder."
    )
    ca: str | None = Field(
        default=None,
        description="For tls://: a file with the trusted certificates, relative to the job file's folder; "
        "null: the system's.",
    )

    @field_validator("url")
    @classmethod
    def _is_one(cls, url: str) -> str:
        if any(urlsplit(each).scheme not in ("nats", "tls", "ws", "wss") for each in url.split(",")):
            raise ValueError("must begin with nats://, tls://, ws:// or wss://, each of several")
        return ",".join(map(server_url, url.split(",")))


class NatsSource(BrokerSource):
    """Messages of JetStream's streams, read without a durable consumer, because the job's snapshots hold its
    position."""

    Options = NatsOptions
    options: NatsOptions
    needs: ClassVar[str] = "nats"

    def client(self, reader: Reader) -> BrokerClient:
        """See `BrokerSource.client`."""
        from rolemesh_nats.client import JetStreamClient, JetStreamOptions

        options = self.options
        paths = (None if path is None else str(Path(reader.base, path)) for path in (options.credentials, options.ca))
        more = JetStreamOptions(tuple(options.streams), options.until, options.trim, options.skip, *paths)
        return JetStreamClient(options.url, more)
