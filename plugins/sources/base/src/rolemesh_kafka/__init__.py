"""The source `kafka`: topics of an Apache Kafka cluster. Each partition of a topic is a partition: ``clicks/0``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rolemesh_sources import Reader
from rolemesh_sources.brokers import BrokerClient, BrokerOptions, BrokerSource

__all__ = ["KafkaOptions", "KafkaSource"]

OWN = {
    "auto.offset.reset": "the option start",
    "bootstrap.servers": "the option servers",
    "enable.auto.commit": "the option group",
    "enable.auto.offset.store": "the option group",
    "enable.partition.eof": "the source",
    "group.id": "the option group",
    "isolation.level": "the source, which reads committed transactions only",
    "queued.max.messages.kbytes": "the source",
    "queued.min.messages": "the source",
}
"""Settings of librdkafka that are not given in `config`, and what sets them."""


class KafkaOptions(BrokerOptions):
    """The cluster, the topics, the form of a record, and the handling of missing data."""

    servers: str = Field(min_length=1, description="host[:port] of a broker; several with commas.")
    streams: list[str] = Field(
        min_length=1, description="Names, or patterns (clicks*), of topics. They need not exist yet."
    )
    config: dict[str, str | int | float | bool] = Field(
        default={},
        description="More settings of librdkafka, for TLS and SASL above all: {security.protocol: SASL_SSL, "
        "sasl.mechanism: SCRAM-SHA-512, sasl.username: …, sasl.password: '${KAFKA_PASSWORD}'}. Files (ssl.ca.location) "
        "are relative to the job file's folder.",
    )
    form: Literal["json", "text", "bytes"] = Field(
        default="json",
        description="The form of a message. json: its value is a JSON object, whose fields are columns; text, bytes: "
        "its value is the column `value`. Keys and headers are bytes for bytes, and text otherwise.",
    )
    meta: dict[Literal["key", "headers", "time", "topic", "partition", "offset"], str] = Field(
        default={},
        description="Columns for what a message has beside its value: {key: user, time: at}. The time is in seconds.",
    )
    until: str | None = Field(
        default=None,
        description="The end: 'end' when all present messages are read, or a topic whose existence marks the end. "
        "null: never.",
    )
    group: str | None = Field(
        default=None,
        min_length=1,
        description="A consumer group without members, for which the source commits offsets when a checkpoint on disk "
        "contains their results, so that tools can show its lag. The source does not read them. null: no commits.",
    )
    skip: bool = Field(
        default=False,
        description="Skip messages that do not have this form, and messages that were removed before they were read, "
        "with a warning instead of an error.",
    )

    @field_validator("config")
    @classmethod
    def _is_free(cls, config: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        for name in config.keys() & OWN.keys():
            raise ValueError(f"{name} is set by {OWN[name]}")
        return config

    @field_validator("meta")
    @classmethod
    def _differ_too(cls, meta: dict[str, str]) -> dict[str, str]:
        if len(set(meta.values())) < len(meta):
            raise ValueError("names a column twice")
        return meta


class KafkaSource(BrokerSource):
    """Messages of Kafka's topics, read without a group's assignment, because the job's snapshots hold its position."""

    Options = KafkaOptions
    options: KafkaOptions
    needs: ClassVar[str] = "confluent_kafka"

    def client(self, reader: Reader) -> BrokerClient:
        """See `BrokerSource.client`."""
        from rolemesh_kafka.client import TopicsClient, TopicsOptions

        options = self.options
        files = {name: value for name, value in options.config.items() if name.endswith(".location")}
        files = {name: str(Path(reader.base, str(value))) for name, value in files.items() if value != "probe"}
        more = TopicsOptions(
            tuple(options.streams), options.form, options.meta, options.until, options.group, skip=options.skip
        )
        config = {"group.id": options.group or f"rolemesh-{reader.job}", **options.config, **files}
        return TopicsClient(options.servers, config, more)
