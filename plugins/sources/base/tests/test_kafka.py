"""The source `kafka`: the kit, and what happens to topics and to their brokers."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from kafka_brokers import Encrypted, Mock, Server, needs_server
from tests.waiting import HANG_S, until

from rolemesh_kafka import KafkaOptions, KafkaSource
from rolemesh_kafka.client import ANSWER_S, TopicsClient, TopicsOptions, settings
from rolemesh_sources import Reader, SourceError
from rolemesh_sources.brokers import BUFFER_BYTES, BrokerAway
from rolemesh_testing import SourceConformance

numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("kafka"))
    yield made
    made.stop()


@pytest.fixture
def name() -> str:
    """Return the name of a topic that only this test uses."""
    return f"clicks{next(numbers)}"


@pytest.fixture
def source_class() -> type[KafkaSource]:
    return KafkaSource


@pytest.fixture
def reading(opened: Any, server: Server, name: str) -> Any:
    """``reading(**options)``: a reading of the first partition of the topic `name`."""
    server.partitions(name, 1)

    def make(**options: Any) -> Any:
        return opened(server.url, f"{name}/0", **{"streams": [name], **options})

    return make


class Topics(SourceConformance):
    plugin = "kafka"
    long_rows = 40
    bad_options = (
        {"servers": ""},
        {"streams": []},
        {"start": "now"},
        {"start": "2026-11-29T08:00:00"},
        {"config": {"isolation.level": "read_uncommitted"}},
        {"meta": {"key": "a", "time": "a"}},
    )
    options: dict[str, Any] = {"servers": "127.0.0.1:1", "streams": ["clicks"]}
    cluster: Any

    def begin(self, cluster: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.name = cluster, name
        options = {"servers": cluster.url, "streams": [name], "until": f"{name}.done", "group": name}
        monkeypatch.setattr(type(self), "options", options)

    def finish(self, base: Path) -> None:
        self.cluster.add(f"{self.name}.done", 1)


@needs_server
class TestKafka(Topics):
    """Partitions are added to the topic while it is read."""

    @pytest.fixture(autouse=True)
    def _topics(self, server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begin(server, name, monkeypatch)

    def add(self, base: Path, partition: int, rows: Sequence[Any]) -> None:
        self.cluster.partitions(self.name, partition + 1)
        self.cluster.add(self.name, *(json.dumps(row).encode() for row in rows), partition=partition)


@pytest.fixture(scope="module")
def mock() -> Iterator[Mock]:
    made = Mock()
    yield made
    made.stop()


class TestKafkaOfThreeBrokers(Topics):
    """Topics have their leaders on different brokers."""

    @pytest.fixture(autouse=True)
    def _topics(self, mock: Mock, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begin(mock, name, monkeypatch)
        self.options["streams"] = [f"{name}-*"]

    def add(self, base: Path, partition: int, rows: Sequence[Any]) -> None:
        self.cluster.add(
            f"{self.name}-{partition}", *(json.dumps(row).encode() for row in rows), partition=partition % 4
        )


@needs_server
def test_a_topic_that_does_not_exist_yet_is_waited_for(server: Server, name: str, opened: Any) -> None:
    now = opened(server.url, f"{name}/0", streams=[name])
    assert list(now.source.partitions()) == []
    server.partitions(name, 2)
    server.add(name, 1, 2)
    end = time.monotonic() + HANG_S
    while list(now.source.partitions()) != [f"{name}/0", f"{name}/1"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert now.take(2) == [1, 2]


@needs_server
def test_only_messages_of_committed_transactions_are_read_and_the_end_is_behind_them(
    server: Server, name: str, reading: Any
) -> None:
    server.add(name, 1)
    aborting, producer = (server.producer(**{"transactional.id": f"{name}.{number}"}) for number in range(2))
    for each, value, ends in ((aborting, 2, "abort_transaction"), (producer, 3, "commit_transaction")):
        each.init_transactions(20)
        each.begin_transaction()
        server.add(name, value, producer=each)
        getattr(each, ends)(20)
    producer.begin_transaction()
    server.add(name, 4, producer=producer)
    now = reading(until="end")
    assert now.take(2) == [1, 3]
    assert now.take(1, timeout_s=0.5) == []
    now.again()
    producer.commit_transaction(20)
    assert now.take(1) == [4]
    now.again()
    end = time.monotonic() + HANG_S
    while not now.source.ended({now.stream: now.offset}):  # a transaction ends with a message of the broker's
        assert time.monotonic() < end
        assert now.take(1, timeout_s=0.05) == []
    assert now.offset == 7


@needs_server
def test_key_headers_and_time_of_a_message_can_be_columns(server: Server, name: str, reading: Any) -> None:
    meta = {each: f"_{each}" for each in ("key", "headers", "time", "topic", "partition", "offset")}
    at = int(time.time() * 1000)
    headers = [("tag", b"a"), ("tag", b"b"), ("none", None)]
    server.add(name, 1, key="user", headers=headers, timestamp=at)
    now = reading(meta=meta)
    while not (rows := now.source.read(now.stream, now.offset, 1)).rows:
        now.offset = rows.offset
    assert dict(rows.rows[0]) == {
        "n": 1,
        "_key": "user",
        "_headers": {"tag": ["a", "b"], "none": None},
        "_time": at / 1000,
        "_topic": name,
        "_partition": 0,
        "_offset": 0,
    }


@needs_server
@pytest.mark.parametrize(
    ("form", "key", "value"), [("text", "k", "{"), ("text", "k", None), ("bytes", b"k", b"{"), ("bytes", b"k", None)]
)
def test_a_message_need_not_be_json(
    server: Server, name: str, reading: Any, form: str, key: str | bytes, value: str | bytes | None
) -> None:
    server.add(name, None if value is None else b"{", key=b"k")
    now = reading(form=form, meta={"key": "n"})
    assert now.take(1) == [key]
    (row,) = now.source.read(now.stream, 0, 1).rows or poll(now)
    assert row["value"] == value


def poll(now: Any) -> Any:
    end = time.monotonic() + HANG_S
    while not (rows := now.source.read(now.stream, 0, 1).rows):
        assert time.monotonic() < end
        time.sleep(0.005)
    return rows


@needs_server
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"[2]", "Expected `object`"),
        (b"{", "truncated"),
        (None, "a tombstone"),
        (b'{"at": 1}', "has the field 'at'"),
        (b'{"n": "\xff"}', "utf-8"),
    ],
)
def test_a_bad_message_is_named_after_those_before_it_and_may_be_left_out(
    server: Server, name: str, reading: Any, bad: bytes | None, why: str
) -> None:
    server.add(name, 1, bad, 3)
    now = reading(meta={"time": "at"})
    assert now.take(1) == [1]
    error = now.fails()
    assert f"message 1 of partition '{name}/0' does not have the form 'json'" in error.what
    assert why.lower() in error.what.lower()
    assert reading(skip=True, meta={"time": "at"}).take(2) == [1, 3]


@needs_server
def test_a_new_job_may_begin_at_a_time_at_an_offset_or_with_what_comes(server: Server, name: str, reading: Any) -> None:
    now_s = int(time.time())  # messages that are older than a week would be removed
    for n in range(4):
        server.add(name, n, timestamp=1000 * (now_s + n))
    at = datetime.fromtimestamp(now_s + 1.5, UTC)
    assert reading(start=at.isoformat()).take(2) == [2, 3]
    assert reading(start={f"{name}/0": 3}).take(1) == [3]
    made = [reading(start="newest"), reading(start=datetime.fromtimestamp(now_s + 9, UTC))]
    for now in made:
        assert now.take(1, timeout_s=0.2) == []
    server.add(name, 4)
    for now in made:
        now.again()
        assert now.take(1) == [4]
    with pytest.raises(SourceError, match="no offset"):
        reading(start={f"{name}/0": "x"}).take(1)


@needs_server
def test_partitions_that_come_while_the_job_runs_are_read_from_their_beginning(
    server: Server, name: str, reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.add(name, 1)
    now = reading(start="newest")
    assert now.take(1, timeout_s=0.2) == []
    server.partitions(name, 3)
    server.add(name, 2, 3, partition=2)
    now.again()  # the rank is killed before it has seen the partition
    now.source.resume({now.stream: now.offset})
    now.stream, now.offset = f"{name}/2", None
    assert now.take(2) == [2, 3]
    reading(start={f"{name}/7": 1})
    assert f"not there: {name}/7" in caplog.text


@needs_server
def test_messages_that_were_removed_before_they_were_read_are_an_error_and_may_be_left_out(
    server: Server, name: str, reading: Any
) -> None:
    for n in range(4):
        server.add(name, n)
    now = reading()
    assert now.take(2) == [0, 1]
    server.remove(name, 3)
    now.again()
    error = now.fails()
    assert f"messages from 2 on of partition '{name}/0' were removed" in error.what
    assert "begins with 3 now" in error.what
    assert error.where == server.url
    assert "skip: true" in error.remedy
    now.options["skip"] = True
    now.again()
    assert now.take(1) == [3]


@needs_server
def test_a_topic_made_again_is_an_error_and_with_skip_another_beginning(
    server: Server, name: str, reading: Any
) -> None:
    server.add(name, 1, 2)
    now = reading()
    assert now.take(2) == [1, 2]
    server.admin.delete_topics([name])[name].result(HANG_S)
    server.partitions(name, 1)
    server.add(name, 3)
    now.again()
    assert "was created again" in now.fails().what
    now.options["skip"] = True
    now.again()
    assert now.take(1) == [3]


def committed(server: Server, topic: str, group: str = "us") -> int:
    """The offset that the group has committed for the first partition; -1001 for none."""
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    (found,) = server.admin.list_consumer_group_offsets([asked])[group].result(HANG_S).topic_partitions
    return int(found.offset)


@needs_server
def test_acknowledged_offsets_are_committed_for_a_group_only(server: Server, name: str, reading: Any) -> None:
    server.add(name, *range(10))
    for group, at in ((None, -1001), (name, 6)):
        now = reading(group=group)
        assert now.take(6) == list(range(6))
        now.source.acknowledge({f"{name}/0": now.offset})
        now.source.close()
        assert committed(server, name, name) == at
        now.again()
        assert now.take(4) == [6, 7, 8, 9], "the job's own offset counts"


@needs_server
def test_a_broker_that_is_away_is_waited_for_and_each_message_comes_once(
    tmp_path: Path, name: str, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    own = Server(tmp_path)
    try:
        own.partitions(name, 1)
        own.add(name, *range(5))
        now = opened(own.url, f"{name}/0", streams=[name], group="us")
        assert now.take(3) == [0, 1, 2]
        own.stop()
        assert now.take(2) == [3, 4]
        until(lambda: "is away" in caplog.text, what="it says that the server is away")
        assert now.source.lag({}) is None
        now.source.acknowledge({now.stream: now.offset})
        own.start()
        own.add(name, 5, 6)
        assert now.take(2) == [5, 6]
        until(lambda: "is back after" in caplog.text, what="its thread says so after it has given the records")
        os.kill(own.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(20):
            assert not now.source.read(now.stream, now.offset, 9).rows
            assert not now.source.ended({now.stream: now.offset})
        assert time.monotonic() - began < ANSWER_S, "a rank that asks does not wait for an answer"
        os.kill(own.process.pid, signal.SIGCONT)
        own.add(name, 7)
        assert now.take(1) == [7]
    finally:
        own.stop()


@needs_server
def test_many_messages_come_in_order_from_several_partitions_however_little_is_fetched_ahead(
    server: Server, name: str, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolemesh_sources.brokers.MOST_AHEAD", 40)
    server.partitions(name, 3)
    producer = server.producer()
    for n in range(3000):
        producer.produce(name, json.dumps({"n": n}).encode(), partition=n % 3)
    assert producer.flush(30) == 0
    source = opened(server.url, f"{name}/0", streams=[name]).source
    found: dict[str, list[int]] = {f"{name}/{number}": [] for number in range(3)}
    position: dict[str, Any] = {}
    end = time.monotonic() + HANG_S
    while sum(map(len, found.values())) < 3000 and time.monotonic() < end:
        for partition in source.partitions():
            got = source.read(partition, position.get(partition), 100)
            position[partition] = got.offset
            found[partition] += [row["n"] for row in got.rows]
    assert found == {f"{name}/{number}": list(range(number, 3000, 3)) for number in range(3)}


# --------------------------------------------------------------------------------------------------- TLS and SASL


class Authority:
    """Makes certificates. `trusted` has its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key, self.trusted = folder, ec.generate_private_key(ec.SECP256R1()), folder / "authority.pem"
        self.trusted.write_bytes(self._signed(self.key, "127.0.0.1", 9).public_bytes(Encoding.PEM))

    def _signed(self, key: Any, host: str, days: float) -> x509.Certificate:
        names = ("authority", "authority" if key is self.key else "other")
        issuer, subject = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in names)
        now = datetime.now(UTC)
        made = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(9)).not_valid_after(now + timedelta(days))
        own = x509.BasicConstraints(ca=key is self.key, path_length=None)
        hosts = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
        return made.add_extension(own, critical=True).add_extension(hosts, critical=False).sign(self.key, SHA256())

    def certificate(self, name: str, host: str = "127.0.0.1", days: float = 9) -> Path:
        """A file with a new key and its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (path := self.folder / f"{name}.pem").write_bytes(
            secret + self._signed(key, host, days).public_bytes(Encoding.PEM)
        )
        return path


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(scope="module")
def broker() -> Iterator[Mock]:
    made = Mock(1)
    yield made
    made.stop()


@pytest.mark.parametrize("client_has_one", [False, True])
def test_messages_come_over_tls_with_a_certificate_of_the_client_if_the_broker_asks_for_one(
    broker: Mock, authority: Authority, name: str, opened: Any, client_has_one: bool
) -> None:
    broker.add(name, 1, 2)
    config = {"security.protocol": "SSL", "ssl.ca.location": str(authority.trusted)}
    if client_has_one:
        own = str(authority.certificate("client"))
        config |= {"ssl.certificate.location": own, "ssl.key.location": own}
    way = Encrypted(broker, authority.certificate("broker"), authority.trusted if client_has_one else None)
    assert opened(way.url, f"{name}/0", streams=[name], config=config).take(2) == [1, 2]
    way.close()


@pytest.mark.parametrize(
    ("host", "days", "trusted", "why"),
    [
        ("127.0.0.1", -1, True, "certificate has expired"),
        ("10.9.9.9", 9, True, "certificate is not valid for '127.0.0.1'"),
        ("127.0.0.1", 9, False, "unable to get local issuer certificate"),
    ],
)
def test_a_certificate_that_is_not_accepted_is_an_error_with_the_reason(
    broker: Mock, authority: Authority, opened: Any, host: str, days: float, trusted: bool, why: str
) -> None:
    way = Encrypted(broker, authority.certificate("broker", host, days))
    config = {"security.protocol": "SSL"} | ({"ssl.ca.location": str(authority.trusted)} if trusted else {})
    with pytest.raises(SourceError, match="the broker's certificate is not accepted") as caught:
        opened(way.url, "clicks/0", streams=["clicks"], config=config)
    assert f"{way.url}: " in caught.value.what
    assert why in caught.value.what
    assert "ssl.ca.location" in caught.value.remedy
    way.close()


def test_a_certificate_that_expires_while_the_job_runs_is_waited_for(
    broker: Mock, authority: Authority, name: str, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.add(name, 1)
    way = Encrypted(broker, authority.certificate("broker"))
    config = {"security.protocol": "SSL", "ssl.ca.location": str(authority.trusted)}
    now = opened(way.url, f"{name}/0", streams=[name], config=config)
    assert now.take(1) == [1]
    way.accept(authority.certificate("old", days=-1))
    now.source._client.close()  # as when the broker is restarted
    until(lambda: "certificate has expired); the rank waits" in caplog.text, "it says why it waits")
    way.accept(authority.certificate("new"))
    broker.add(name, 2)
    assert now.take(1) == [2]
    way.close()


def test_a_client_without_tls_hears_what_may_be_wrong(
    broker: Mock, authority: Authority, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    way = Encrypted(broker, authority.certificate("broker"))
    now = opened(way.url, "clicks/0", streams=["clicks"])
    assert now.source.waiting()
    assert "connections are closed at once, as with a wrong security.protocol" in caplog.text
    way.close()


# ---------------------------------------------------------------------------------- decisions, without a broker


def test_a_broker_that_nobody_has_seen_yet_fails_no_rank(opened: Any) -> None:
    now = opened("127.0.0.1:1", "clicks/0", streams=["clicks"])
    assert now.take(1, timeout_s=0.2) == []
    assert list(now.source.partitions()) == []
    assert "127.0.0.1:1 is away" in now.source.waiting()


def test_ranks_share_the_partitions_of_all_topics_evenly() -> None:
    source = KafkaSource(KafkaOptions(servers="host", streams=["a", "b"]))
    names = [f"{topic}/{number}" for topic in "ab" for number in range(3)]
    assert [source.rank_of(name, 3) for name in names] == [0, 1, 2, 1, 2, 0]
    source = KafkaSource(KafkaOptions(servers="host", streams=["cl*"]))
    assert sorted(source.rank_of(f"clicks/{number}", 4) for number in range(8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_settings_go_to_librdkafka_and_its_queue_is_as_large_as_ours() -> None:
    sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "fetch.wait.max.ms": 5, "enable.auto.commit": 1}
    found = settings("host:1", sasl)
    assert found["sasl.mechanism"] == "PLAIN"
    assert found["fetch.wait.max.ms"] == 5
    assert found["isolation.level"] == "read_committed"
    assert found["enable.auto.commit"] is False
    assert found["queued.max.messages.kbytes"] * 1024 <= BUFFER_BYTES
    assert found["bootstrap.servers"] == "host:1"


def client(config: dict[str, Any], base: str = ".") -> Any:
    """Return the client of a source with this `config`. librdkafka itself has read it then."""
    options = KafkaOptions(servers="host:1", streams=["s"], config=config)
    return KafkaSource(options).client(Reader("job", "data", 0, 1, base))


def test_settings_of_tls_and_sasl_are_those_of_librdkafka_and_their_errors_name_them(tmp_path: Path) -> None:
    sasl = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "us", "sasl.password": "s3cret"}
    made = client({"security.protocol": "SASL_SSL", "ssl.ca.location": "probe", **sasl})
    assert made._config["sasl.password"] == "s3cret"
    assert "s3cret" not in made.where
    for config, said in (
        ({"sasl.mechanisms": "X"}, "Unsupported SASL mechanism"),
        ({"no.such": 1}, 'No such configuration property: "no.such"'),
        ({"security.protocol": "SSL", "ssl.ca.location": "no.pem"}, "ssl.ca.location failed"),
    ):
        with pytest.raises(SourceError, match=said) as caught:
            client({"security.protocol": "SASL_SSL", **sasl, **config}, str(tmp_path))
        assert "s3cret" not in f"{caught.value.what} {caught.value.where} {caught.value.remedy}"


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (KafkaError._AUTHENTICATION, SourceError, "refuses us"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SourceError, "refuses us"),
        (KafkaError.UNKNOWN_MEMBER_ID, SourceError, "cannot be committed"),
        (KafkaError._TRANSPORT, BrokerAway, ""),
        (KafkaError._SSL, BrokerAway, ""),
        (KafkaError._ALL_BROKERS_DOWN, BrokerAway, "wrong security.protocol"),
        (KafkaError.NOT_LEADER_FOR_PARTITION, BrokerAway, ""),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, BrokerAway, ""),
    ],
)
def test_an_error_ends_the_rank_only_if_asking_again_does_not_help(code: int, kind: type, said: str) -> None:
    made = TopicsClient("host:1", {"group.id": "g"}, TopicsOptions(("s",), "json", {}, None, "g", skip=False))
    error = made._failed(KafkaError(code))
    assert isinstance(error, kind)
    assert said in str(error)


@pytest.mark.parametrize("part", ["Local: Broker transport failure", "Local: Timed out"])
def test_a_broker_that_goes_away_during_the_authentication_refuses_nobody(part: str) -> None:
    """librdkafka has one code for both."""
    made = TopicsClient("host:1", {"group.id": "g"}, TopicsOptions(("s",), "json", {}, None, None, skip=False))
    told = KafkaError(KafkaError._AUTHENTICATION, f"SASL PLAIN mechanism handshake failed: {part}")
    assert isinstance(made._failed(told), BrokerAway)
    made._on_error(told)
    with suppress(BrokerAway):  # nobody is at host:1, which the client may know by now
        made._check()
