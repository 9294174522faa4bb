"""Brokers for the tests of the source `kafka`: librdkafka's mock cluster, and a server that keeps what it is sent.

``python kafka_brokers.py`` runs the mock cluster until its standard input ends, and prints its addresses. It has keys,
headers, commits and several brokers, but neither transactions nor times, and forgets all when it ends. `Server` has
these, and adds partitions; it is one broker.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import HANG_S, until

if find_spec("confluent_kafka") is not None:
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

SERVER = Path(sys.prefix, "judges/noida_db/noida-db")
needs_server = pytest.mark.skipif(not SERVER.exists(), reason="NO KAFKA SERVER: make judges")
QUIET = {"log_level": 0, "linger.ms": 0}


class Cluster:
    """Brokers at `url`, and the requests of tests to them."""

    url: str

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.url, "log_level": 0})

    def producer(self, **config: Any) -> Producer:
        return Producer({"bootstrap.servers": self.url, "acks": "all", **QUIET, **config})

    def add(self, topic: str, *values: Any, partition: int = 0, producer: Any = None, **more: Any) -> None:
        """Append ``{"n": value}``, or the value if it is bytes, to a partition, and wait until that is there."""
        made = producer or self.producer()
        for value in values:
            data = value if isinstance(value, bytes | None) else json.dumps({"n": value}).encode()
            made.produce(topic, data, partition=partition, **more)
        assert made.flush(30) == 0

    def partitions(self, topic: str, count: int) -> None:
        """Give the topic that many partitions, if it has fewer."""
        found = self.admin.list_topics(topic, timeout=HANG_S).topics[topic].partitions
        if not found:
            self.admin.create_topics([NewTopic(topic, count)])[topic].result(HANG_S)
        elif len(found) < count:
            self.admin.create_partitions([NewPartitions(topic, count)])[topic].result(HANG_S)

    def remove(self, topic: str, before: int) -> None:
        """Remove the messages before the offset `before`, as a topic's retention does."""
        (done,) = self.admin.delete_records([TopicPartition(topic, 0, before)]).values()
        done.result(HANG_S)


class Server(Cluster):
    """A server of its own, which keeps its messages in `folder`."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.host, self.url = folder, host, f"{host}:{self.port}"
        self.start()

    def start(self) -> None:
        SERVER.chmod(0o755)
        place = ["--host", self.host, "--kafka-port", str(self.port), "--data-dir", str(self.folder / "kafka")]
        with (self.folder / "kafka.log").open("a") as log:
            self.process = subprocess.Popen([SERVER, "start", "--only", "kafka", *place], stdout=log, stderr=log)
        until(self._answers)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it. It saves its messages at SIGTERM, and otherwise within a second."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait()


class Mock(Cluster):
    """librdkafka's mock cluster. A topic has four partitions as soon as somebody writes to it."""

    def __init__(self, brokers: int = 3) -> None:
        pipe = subprocess.PIPE
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, __file__, str(brokers)]
        self.process = subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def stop(self) -> None:
        self.process.communicate()


class Encrypted:
    """OpenSSL before the only broker of a cluster, which speaks plain text: it names this address in place of its own.

    `certificate` is a file with a key and a certificate; `authority` has that of the clients, if they need one.
    """

    def __init__(self, cluster: Cluster, certificate: Path, authority: Path | None = None) -> None:
        self.accept(certificate, authority)
        self._there = cluster.url.partition(":")[::2]
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def accept(self, certificate: Path, authority: Path | None = None) -> None:
        """Use another certificate from now on."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        if authority is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(authority)

    def close(self) -> None:
        self._socket.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        own, here = (int(port).to_bytes(4, "big") for port in (self._there[1], self.url.partition(":")[2]))
        with (
            suppress(OSError),
            self._context.wrap_socket(link, server_side=True) as client,
            socket.create_connection(self._there) as broker,
        ):
            back = threading.Thread(target=_copy, args=(broker, client, b"127.0.0.1" + own, b"127.0.0.1" + here))
            back.start()
            _copy(client, broker, b"", b"")
            back.join()


def _copy(source: socket.socket, target: socket.socket, old: bytes, new: bytes) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 20):
            target.sendall(data.replace(old, new) if old else data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    from confluent_kafka import Producer

    mock = Producer({"test.mock.num.brokers": int(sys.argv[1]), "bootstrap.servers": "made", "log_level": 0})
    print(
        ",".join(f"{each.host}:{each.port}" for each in mock.list_topics(timeout=HANG_S).brokers.values()), flush=True
    )
    sys.stdin.read()
